"""Memory for pieces, and their way into an unfinished file: past the page cache, or through it.

Bytes that are not read soon go past the cache (O_DIRECT). Finding pages for it costs a node more than all else that it
does (benchmarks/NOTES.md), and the pages would replace what the training reads. It takes whole pages of page-aligned
memory, so the rest of a file's last page goes through the cache.
"""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from dlio.dataset.manifest import File
from dlio.errors import StorageError
from dlio.io import files, world
from dlio.rights.access import Access
from dlio.stage.copies.blocks import Blocks

MOST_BYTES = 4 << 20  # of a piece
ONCE_BYTES = 1 << 20  # of a file that is written at once: of a larger one, the page cache costs more than its blocks
PAGE_BYTES = mmap.PAGESIZE
T = TypeVar("T")
StrPath = str | Path
#: Makes an unfinished file before its first byte.
Create = Callable[[Path, File], None]


class Buffers:
    """Page-aligned memory for one piece each, used again; for any number of threads."""

    def __init__(self) -> None:
        self._free: list[memoryview] = []  # the last used first: the system has found its pages

    def take(self) -> memoryview:
        """Returns memory that nobody else uses until it is given back."""
        try:
            return self._free.pop()
        except IndexError:
            return memoryview(mmap.mmap(-1, MOST_BYTES, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))

    def give_back(self, buffer: memoryview) -> None:
        """Gives memory back."""
        self._free.append(buffer)


def write_range(path: StrPath, begin: int, data: memoryview, *, is_cached: bool) -> None:
    """Writes a range of an unfinished file, through the page cache or, where the file system can, past it.

    Raises:
        OSError: the file system refused; a link is not followed.
    """
    past = 0 if is_cached or begin % PAGE_BYTES else len(data) - len(data) % PAGE_BYTES
    if past and not _write_past_cache(path, begin, data[:past]):
        past = 0
    if past < len(data):
        with opened(path, os.O_WRONLY) as descriptor:
            files.write_all(descriptor, begin + past, data[past:])


def _write_past_cache(path: StrPath, begin: int, data: memoryview) -> bool:
    """Writes whole pages, and returns whether the file system can; raises OSError."""
    try:
        with opened(path, os.O_WRONLY | os.O_DIRECT) as descriptor:
            files.write_all(descriptor, begin, data)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return False
    return True


def begin(root: Path, path: Path, aside: Path, bits: Path, file: File, create: Create | None) -> tuple[Blocks, bool]:
    """Returns the blocks of an unfinished file, which is continued or made, and whether it is new.

    Args:
        root: the folder below which folders are made.
        path: the file's.
        aside: its path until it has its length and its blocks.
        bits: the path of its blocks.
        file: its entry in the manifest.
        create: makes it; None for a plain file.

    Raises:
        StorageError: the file system refused.
    """
    with files.storage_errors("create", path):
        if path.is_file() and path.stat().st_size == file.num_bytes and not path.is_symlink():
            with suppress(StorageError):
                return Blocks.open(bits, file.num_bytes, is_writable=True), False
        path.unlink(missing_ok=True)
        with made(root, aside, file, create) as descriptor:
            os.ftruncate(descriptor, file.num_bytes)
        files.make_folders(root, bits.parent)
        blocks = Blocks.create(bits, file.num_bytes)
        try:
            with_folder(root, path, lambda: world.replace(aside, path))  # readers see it with its size and its blocks
        except OSError:
            blocks.close()
            raise
        return blocks, True


def made(root: StrPath, path: StrPath, file: File, create: Create | None) -> Opened:
    """Returns an empty file that is open, made or emptied, in its folder below `root`; raises StorageError, OSError."""
    if create is None:
        return with_folder(root, path, lambda: opened(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC))
    path = Path(path)
    if not path.is_file():
        files.make_folders(root, path.parent)
        create(path, file)
    return opened(path, os.O_RDWR | os.O_TRUNC)


def write_whole(
    root: str, path: str, file: File, data: memoryview, create: Create | None, access: Access, *, reads_end: bool
) -> None:
    """Makes and writes a file, zeros as a hole, waits until it is on the disk, and gives others access to it.

    Args:
        root: the folder below which its folders are made.
        path, file, data: its path, its entry in the manifest, and its content.
        create: makes it; None for a plain file.
        access: who may read it.
        reads_end: also compares its end with what is on the disk.

    Raises:
        StorageError: the file system has lost a part of it.
        OSError: the file system refused.
    """
    try:
        with made(root, path, file, create) as descriptor:
            if data and is_hole(data):
                os.ftruncate(descriptor, len(data))
            else:
                files.write_all(descriptor, 0, data)
            files.sync_written(descriptor)
            if reads_end:
                check_last(path, descriptor, len(data), bytes(data[-PAGE_BYTES:]))
            else:
                files.check_length(path, descriptor, len(data))
            access.give_open(descriptor)
    except OSError:  # half a file would take a full disk's last room
        with suppress(OSError):
            Path(path).unlink()
        raise


class Opened:
    """A descriptor, closed when the context is left."""

    __slots__ = ("_descriptor",)

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def __enter__(self) -> int:
        """Returns it."""
        return self._descriptor

    def __exit__(self, *_: object) -> None:
        """Closes it."""
        os.close(self._descriptor)


def opened(path: StrPath, flags: int) -> Opened:
    """Opens a file of the live folder, but no link, and closes it when the context is left; raises OSError."""
    return Opened(world.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))


def check_last(path: StrPath, descriptor: int, num_bytes: int, written: bytes) -> None:
    """Compares the end of a synced file, as it is on the disk, with what was written; raises StorageError, OSError."""
    begin = num_bytes - len(written)
    os.posix_fadvise(descriptor, begin, 0, os.POSIX_FADV_DONTNEED)
    files.check_length(path, descriptor, num_bytes)
    if world.pread(descriptor, len(written), begin) != written:
        problem = f"{path} has lost bytes at its end that were written and acknowledged"
        raise StorageError(errno.EIO, f"{problem}: its file system loses data; check the disk, or use another folder")


def with_folder(root: StrPath, path: StrPath, make: Callable[[], T]) -> T:
    """Returns what `make` returns, which makes `path`; makes its folders below `root` if they are missing."""
    try:
        return make()
    except FileNotFoundError:  # rather than to look each time: that takes as long as the rest
        files.make_folders(root, Path(path).parent)
        return make()


def is_hole(data: memoryview) -> bool:
    """Returns whether data is zeros only."""
    return not data[0] and not data[-1] and data.tobytes() == bytes(len(data))
