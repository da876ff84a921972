"""Effects on files: publishing under a final name, reading, digests, and errors that name the path.

A file gets its final name only when it is complete and on the disk: it is written under another name, synced, renamed,
and its folder synced. Digests are `algorithm:hex`; xxh3-128 guards against accidents, blake3 against people.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Protocol

import blake3
import xxhash

from dlio.errors import DigestError, StorageError, UsageError
from dlio.io import limits, world

FULL = (errno.ENOSPC, errno.EDQUOT)  # a file system, or what this user may write on it
READ_BYTES = 8 << 20  # Lustre and GPFS reach full speed with reads of 4 to 16 MiB
DEFAULT_DIGEST = "xxh3-128"
Span = tuple[int, int]  #: where bytes of a file begin and end


class Closeable(Protocol):
    """What can be closed."""

    def close(self) -> None:
        """Closes it."""


class Hash(Protocol):
    """A running digest."""

    def update(self, data: bytes | bytearray | memoryview, /) -> object:
        """Adds bytes."""

    def hexdigest(self) -> str:
        """Returns the digest so far."""


ALGORITHMS: dict[str, Callable[[], Hash]] = {"xxh3-128": xxhash.xxh3_128, "blake3": blake3.blake3}


def new_hash(algorithm: str) -> Hash:
    """Returns an empty running digest.

    Raises:
        UsageError: the algorithm is unknown.
    """
    try:
        return ALGORITHMS[algorithm]()
    except KeyError:
        raise UsageError(f"{algorithm!r} is not a digest: expected one of {', '.join(ALGORITHMS)}") from None


def digest_bytes(data: bytes | memoryview, algorithm: str = DEFAULT_DIGEST) -> str:
    """Returns `algorithm:hex` of `data`."""
    running = new_hash(algorithm)
    running.update(data)
    return f"{algorithm}:{running.hexdigest()}"


def digest_file(path: Path, algorithm: str = DEFAULT_DIGEST, block_bytes: int = READ_BYTES) -> str:
    """Returns `algorithm:hex` of a file's content, read in blocks of `block_bytes`.

    Raises:
        StorageError: the file cannot be read.
    """
    running = new_hash(algorithm)
    for block in read_blocks(path, block_bytes):
        running.update(block)
    return f"{algorithm}:{running.hexdigest()}"


def read_blocks(path: Path, block_bytes: int = READ_BYTES) -> Generator[memoryview, None, None]:
    """Yields a file's content in blocks of up to `block_bytes`; each block is valid until the next is asked for.

    Raises:
        StorageError: the file cannot be read, or is not a file; see `opened_regular`.
    """
    buffer = memoryview(bytearray(block_bytes))
    with opened_regular(path) as descriptor:
        while count := os.readv(descriptor, [buffer]):
            yield buffer[:count]


@contextmanager
def opened_regular(path: Path) -> Iterator[int]:
    """Opens a regular file for reading, and gives its descriptor.

    Raises:
        StorageError: it cannot be read, or is a folder, a pipe or a device, which may have no end.
    """
    with storage_errors("read", path):
        descriptor = world.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a pipe would wait for its writer
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise StorageError(f"cannot read {path}: it is not a regular file")
            yield descriptor
        finally:
            os.close(descriptor)


def read_regular(path: Path, limit: int) -> bytes:
    """Returns the content of a regular file if it has no more than `limit` bytes, else the first `limit` + 1.

    Raises:
        StorageError: as `opened_regular`.
    """
    with opened_regular(path) as descriptor:
        data = os.read(descriptor, min(os.fstat(descriptor).st_size, limit) + 1)
        while len(data) <= limit and (more := os.read(descriptor, min(READ_BYTES, limit + 1 - len(data)))):
            data += more
        return data


def check_digest(
    path: Path,
    expected: str,
    seen: Callable[[int], None] = lambda num_bytes: None,
    blocks: Iterable[bytes | memoryview] | None = None,
) -> None:
    """Reads the file, or takes its `blocks`, and compares its digest; `seen` is called with the size of each block.

    Raises:
        DigestError: the content differs.
        StorageError: the file cannot be read.
        UsageError: the digest's algorithm is unknown.
    """
    running = new_hash(expected.partition(":")[0])
    for block in read_blocks(path) if blocks is None else blocks:
        running.update(block)
        seen(len(block))
    found = f"{expected.partition(':')[0]}:{running.hexdigest()}"
    if found != expected:
        raise DigestError(f"{path} is damaged: expected the digest {expected}, found {found}")


@contextmanager
def closed_on_error(file: Closeable) -> Iterator[None]:
    """Closes `file` if the block raises; else it stays open."""
    try:
        yield
    except BaseException:
        file.close()
        raise


class storage_errors:  # noqa: N801  used as `contextlib.suppress`; several times a file, so not a generator
    """Turns OSErrors into StorageErrors that name the operation and the path."""

    __slots__ = ("_path", "_verb")

    def __init__(self, verb: str, path: str | os.PathLike[str]) -> None:
        self._verb, self._path = verb, path

    def __enter__(self) -> None:
        """Begins the operation."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Raises StorageError for an OSError of another kind, and for a lack of memory."""
        if isinstance(error, MemoryError):
            raise StorageError(errno.ENOMEM, f"cannot {self._verb} {self._path}: {limits.reached(error)}") from error
        if isinstance(error, OSError) and not isinstance(error, StorageError):
            reason = error.strerror or str(error)
            raise StorageError(error.errno, f"cannot {self._verb} {self._path}: {reason}{_advice(error)}") from error


def _advice(error: OSError) -> str:
    if error.errno == errno.ENOSPC:
        return ": free some space or inodes (df, df -i), or choose another folder"
    if error.errno == errno.EDQUOT:
        return ": remove files that the quota counts, ask for a larger quota, or choose another folder"
    if error.errno == errno.EFBIG:
        return ": raise the limit on the size of files (ulimit -f), or pack into smaller shards"
    if error.errno == errno.EROFS:
        return ": choose a folder that can be written"
    if error.errno in (errno.EACCES, errno.EPERM):
        return ": check the owner and mode of the file and its folder"
    limit = None if error.errno == errno.EAGAIN else limits.reached(error)
    return f": {limit}" if limit else ""


def write_all(descriptor: int, offset: int, data: bytes | memoryview) -> None:
    """Writes all of `data` at an offset; raises OSError if the file system refuses."""
    while data:
        count = world.pwrite(descriptor, data, offset)
        data, offset = data[count:], offset + count


def fill(descriptor: int, offset: int, target: memoryview) -> memoryview:
    """Fills memory with a file's bytes from an offset on; returns the part of it that lies past the file's end."""
    while target and (count := world.preadv(descriptor, [target], offset)):
        target, offset = target[count:], offset + count
    return target


def check_length(path: str | Path, descriptor: int, expected: int) -> None:
    """Compares the length of a file that this process has written with what it wrote.

    Raises:
        StorageError: the file system acknowledged bytes that are not there; or another process writes to the file.
        OSError: its status cannot be read.
    """
    if (found := os.fstat(descriptor).st_size) != expected:
        problem = f"{path} has {found:,} bytes after {expected:,} were written and acknowledged"
        raise StorageError(errno.EIO, f"{problem}: its file system loses data; check the disk, or use another folder")


def sync_written(descriptor: int) -> None:
    """Waits until what was written is on the disk; if that fails, empties the file, so that no run continues with it.

    Linux counts pages that it could not write as clean: they can be read, and the next fsync is a success.

    Raises:
        OSError: the file system refused.
    """
    try:
        world.fsync(descriptor)
    except OSError:
        with suppress(OSError):
            os.ftruncate(descriptor, 0)
        raise


def sync_file(path: Path) -> None:
    """Waits until a file's content is on the disk.

    Raises:
        StorageError: the file system refused.
    """
    _sync(path, os.O_RDONLY)


def sync_folder(path: Path) -> None:
    """Waits until a folder's entries are on the disk.

    Raises:
        StorageError: the file system refused.
    """
    _sync(path, os.O_RDONLY | os.O_DIRECTORY)


def _sync(path: Path, flags: int) -> None:
    with storage_errors("sync", path):
        descriptor = world.open(path, flags)
        try:
            world.fsync(descriptor)
        finally:
            os.close(descriptor)


def make_folders(root: str | Path, folder: Path) -> None:
    """Makes a folder and those around it, below `root`, but not `root`: a copy that was removed does not come again.

    Raises OSError.
    """
    inner = folder.relative_to(root)
    for each in (*reversed(inner.parents), inner)[1:]:
        Path(root, each).mkdir(mode=0o700, exist_ok=True)


def publish(aside: Path, final: Path) -> None:
    """Gives a finished file its final name: sync, rename over, sync the folder.

    Raises:
        StorageError: the file system refused; `aside` is still there.
    """
    sync_file(aside)
    with storage_errors("publish", final):
        world.replace(aside, final)
    sync_folder(final.parent)


def publish_all(aside: Path, final: Path, names: Sequence[str]) -> None:
    """Gives the finished files `names`, paths below the folder `aside`, their names below the folder `final`.

    All are synced before the first is renamed, and each folder is synced once.

    Raises:
        StorageError: the file system refused; what was not renamed is still below `aside`.
    """
    for name in names:
        sync_file(aside / name)
    folders = sorted({final / folder for name in names for folder in Path(name).parents} - {final})
    for folder in folders:
        with storage_errors("create", folder):
            folder.mkdir(parents=True, exist_ok=True)
            _check_planted(folder, final)
    for name in names:
        with storage_errors("publish", final / name):
            world.replace(aside / name, final / name)
    for folder in {*folders, final}:
        sync_folder(folder)


def _check_planted(folder: Path, around: Path) -> None:
    """Raises StorageError for a link, or another user's folder in one that all may write to: it may become a link."""
    status = folder.lstat()
    is_strange = status.st_uid != os.geteuid() and around.stat().st_mode & stat.S_IWOTH
    if is_strange or not stat.S_ISDIR(status.st_mode):
        raise StorageError(
            f"{folder} is a link, or belongs to another user, but dlio needs a folder of that name: remove it"
        )


def publish_bytes(final: Path, data: bytes) -> None:
    """Writes a small file atomically.

    Raises:
        StorageError: the file system refused; nothing is left behind.
    """
    aside = final.with_name(f".{final.name}.{world.random_bytes(8).hex()}.tmp")  # no name to plant a link under
    try:
        with storage_errors("write", final):
            descriptor = world.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
            try:
                write_all(descriptor, 0, data)
                check_length(aside, descriptor, len(data))
            finally:
                os.close(descriptor)
        publish(aside, final)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise
