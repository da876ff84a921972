"""Reads a staged copy from the disk: follows no link, waits for no pipe, and changes no access time.

Files are read past the page cache if the file system can. Cached data may be intact where the disk's are not, and the
cache is needed by the training.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from dlio.dataset.manifest import NAME, File, Manifest, from_bytes
from dlio.errors import DlioError, StorageError
from dlio.io import files, limits
from dlio.io.open_folder import FILE, FOLDER, OpenFolder
from dlio.stage.planning.homes import PIECE_BYTES


class RateLimit:
    """Limits reading to a rate in bytes per second; None for no limit. Used by one thread."""

    def __init__(self, max_rate: int | None = None) -> None:
        self._max_rate = max_rate
        self._free_at = time.monotonic()

    def wait(self, num_bytes: int) -> None:
        """Waits until `num_bytes` may be read; unused time is not made up for."""
        if self._max_rate is None:
            return
        now = time.monotonic()
        if self._free_at > now:
            time.sleep(self._free_at - now)
        self._free_at = max(self._free_at, now) + num_bytes / self._max_rate


NO_LIMIT = RateLimit()


class CopyAtRest:
    """The folder of a staged copy, held open, so that all reads are from the same folder; used by one thread.

    Attributes:
        path: the folder.
        owner: the user id of its owner; a file of another user counts as damaged.

    Raises:
        StorageError: it was removed, or not a folder.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with files.storage_errors("access", path):
            self._folder = OpenFolder(path, os.open(path, FOLDER))
        self.owner = self._folder.owner

    def __enter__(self) -> CopyAtRest:
        return self

    def __exit__(self, *_: object) -> None:
        self._folder.close()

    def is_there(self) -> bool:
        """Returns whether the folder still has its name: it has not been removed or replaced."""
        try:
            return os.path.samestat(self.path.lstat(), self._folder.status)
        except OSError:
            return False

    def damage(self, file: File, pace: RateLimit = NO_LIMIT) -> str | None:
        """Returns the damage of a file; None if it is as in the manifest."""
        algorithm = file.digest.partition(":")[0]
        try:
            digest = files.new_hash(algorithm)
            with self._opened(file.name) as descriptor:
                if (found := os.fstat(descriptor).st_size) != file.num_bytes:
                    return f"has {found:,} bytes, not {file.num_bytes:,} as its manifest says"
                for block in _blocks(descriptor, found, pace):
                    digest.update(block)
        except DlioError as error:
            return error.text
        except OSError as error:
            return f"cannot be read: {error.strerror}"
        found_digest = f"{algorithm}:{digest.hexdigest()}"
        return None if found_digest == file.digest else f"expected the digest {file.digest}, found {found_digest}"

    def read(self, name: str, most_bytes: int) -> bytes:
        """Returns the content of a small file.

        Raises:
            StorageError: it cannot be read, is not a regular file of the owner's, or has more than `most_bytes`.
        """
        path = self.path / name
        with (
            files.storage_errors("read", path),
            self._opened(name) as descriptor,
            open(descriptor, "rb", closefd=False) as file,
        ):
            data = file.read(most_bytes + 1)
        if len(data) > most_bytes:
            raise StorageError(f"{path} has more than {most_bytes:,} bytes: it is not what dlio wrote")
        return data

    def manifest(self) -> Manifest:
        """Returns the copy's manifest.

        Raises:
            ManifestError: it is missing or damaged.
            StorageError: it cannot be read.
        """
        return from_bytes(self.read(NAME, limits.manifest_bytes()), self.path / NAME)

    def check_folders(self, name: str) -> None:
        """Refuses a file whose path leads over a link or a file; folders that do not exist are accepted.

        Raises:
            StorageError: the path does.
        """
        with files.storage_errors("write below", self.path), suppress(FileNotFoundError):
            self._entered(name)[0].close()

    @contextmanager
    def _opened(self, name: str) -> Iterator[int]:
        """Yields the descriptor of a regular file of the owner; raises OSError, StorageError."""
        around, last = self._entered(name)
        with around:
            descriptor = os.open(last, FILE, dir_fd=around.descriptor)
            try:
                status = os.fstat(descriptor)
                if not stat.S_ISREG(status.st_mode) or status.st_uid != self.owner:
                    raise StorageError(f"{self.path / name} is not a regular file of the user {self.owner}")
                fcntl.fcntl(descriptor, fcntl.F_SETFL, os.O_NOATIME)
                yield descriptor
            finally:
                os.close(descriptor)

    def _entered(self, name: str) -> tuple[OpenFolder, str]:
        """Returns the folder that a file lies in, open, and the file's name in it."""
        *folders, last = name.split("/")
        return self._folder.below(*(folders or ["."])), last


def _blocks(descriptor: int, num_bytes: int, pace: RateLimit) -> Iterator[memoryview]:
    """Yields a file's first `num_bytes`, or fewer if it has become shorter; a block is valid until the next."""
    with suppress(OSError):  # a file system without O_DIRECT
        fcntl.fcntl(descriptor, fcntl.F_SETFL, os.O_NOATIME | os.O_DIRECT)
    with mmap.mmap(-1, PIECE_BYTES) as pages, memoryview(pages) as buffer:  # O_DIRECT needs whole pages
        position = 0
        while position < num_bytes:
            pace.wait(min(PIECE_BYTES, num_bytes - position))
            count = _read(descriptor, buffer, position)
            if not count:
                return
            with buffer[:count] as block:
                yield block
            position += count


def _read(descriptor: int, buffer: memoryview, position: int) -> int:
    """Reads into `buffer`; uses the page cache from the offset on at which the file system refuses O_DIRECT."""
    try:
        return os.preadv(descriptor, [buffer], position)
    except OSError as error:
        if error.errno != errno.EINVAL or not fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_DIRECT:
            raise
        fcntl.fcntl(descriptor, fcntl.F_SETFL, os.O_NOATIME)
        return os.preadv(descriptor, [buffer], position)
