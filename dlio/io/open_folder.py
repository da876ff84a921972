"""Folders reached by descriptor, for places where other users may write.

Between the check of a path and its use another user can put a link, a FIFO or another folder there. So a folder is held
open: operations reach that folder even if its name changes. Its entries are opened without following links and without
waiting, and only small regular files are read.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType

from dlio.errors import StorageError
from dlio.io import files, world

MAX_BYTES = 16 << 10  # of a lease, a claim or a marker, which have some hundred
FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
SHUT = "belongs to another user, who does not let others write there (yet): stage again"
_CLOSED = -2  # no descriptor: its number is given to what is opened next; os.listdir(-1) lists the current folder
_MAX_DEPTH = 32  # of a folder to remove; data sets have a few levels


class TakenError(StorageError):
    """A name below a shared folder that this user had chosen has become another user's since."""


@dataclass(frozen=True, slots=True)
class Below:
    """A folder some levels below one that the user named, reached from there each time, without following a link.

    Attributes:
        root: the folder that the user named, or one that nobody else can replace.
        names: the names of the folders below it, down to this one.
        owner: the user id that must own it; None for any.
    """

    root: Path
    names: tuple[str, ...]
    owner: int | None = None

    def __truediv__(self, name: str) -> Below:
        return replace(self, names=(*self.names, name))

    @property
    def path(self) -> Path:
        """The folder's path, for messages."""
        return self.root.joinpath(*self.names)

    def open(self) -> OpenFolder:
        """Returns the folder, held open.

        Raises:
            TakenError: it is another user's.
            OSError: it is missing, or not a folder.
        """
        with OpenFolder.at(self.root) as opened:
            return self._checked(opened.below(*self.names))

    def make(self) -> OpenFolder:
        """Returns the folder, held open, after making it and its parents if they are missing; raises as `open`."""
        self.root.mkdir(parents=True, exist_ok=True)
        found = OpenFolder.at(self.root)
        for name in self.names:
            with found:
                try:
                    inner = found.make(name)
                except PermissionError as error:
                    if found.path != self.root and found.owner != os.geteuid():
                        raise TakenError(errno.EACCES, f"{found.path} {SHUT}") from error
                    raise
            found = inner
        return self._checked(found)

    def _checked(self, found: OpenFolder) -> OpenFolder:
        if self.owner not in (None, found.owner):
            found.close()
            raise TakenError(f"{self.path} was created by another user first: stage again")
        return found


class OpenFolder:
    """An open folder; a context manager, used by one thread. All methods raise OSError if the system refuses.

    Attributes:
        status: of the folder, from fstat.
    """

    def __init__(self, path: Path, descriptor: int, *names: str) -> None:
        self._path, self._names = path, names
        self.descriptor = descriptor
        self.status = os.fstat(descriptor)

    @property
    def path(self) -> Path:
        """Where it was when it was opened, for messages."""
        return self._path.joinpath(*self._names) if self._names else self._path

    @classmethod
    def at(cls, path: Path) -> OpenFolder:
        """Returns the folder at a path that the user named; links in the path are followed."""
        return cls(path, world.open(path, FOLDER & ~os.O_NOFOLLOW))

    def below(self, *names: str) -> OpenFolder:
        """Returns a folder below this one, one name for each level; a link in its place is an OSError."""
        found = self
        for name in names:
            try:
                descriptor = world.open(name, FOLDER, dir_fd=found.descriptor)
                inner = OpenFolder(found._path, descriptor, *found._names, name)
            finally:
                if found is not self:
                    found.close()
            found = inner
        return found

    def close(self) -> None:
        """Closes the folder; whatever is called afterwards raises OSError, and reaches no other folder."""
        descriptor, self.descriptor = self.descriptor, _CLOSED
        os.close(descriptor)

    def __enter__(self) -> OpenFolder:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    @property
    def owner(self) -> int:
        """The user id of the folder's owner."""
        return self.status.st_uid

    def names(self) -> list[str]:
        """Returns the names of all entries, sorted."""
        return sorted(world.names(self.descriptor))

    def look(self, name: str) -> os.stat_result | None:
        """Returns what the system says of an entry itself, be it a link; None if it is missing."""
        try:
            return os.stat(name, dir_fd=self.descriptor, follow_symlinks=False)
        except FileNotFoundError:
            return None

    def has_folder(self, name: str) -> bool:
        """Returns whether an entry is a folder, not a link to one."""
        status = self.look(name)
        return status is not None and stat.S_ISDIR(status.st_mode)

    def read(self, name: str) -> tuple[bytes, os.stat_result]:
        """Returns a small file's content and status; raises OSError for any other kind of entry."""
        descriptor = world.open(name, FILE, dir_fd=self.descriptor)
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise OSError(errno.EINVAL, "it is not a regular file", str(self.path / name))
            if status.st_size > MAX_BYTES:
                raise OSError(errno.EFBIG, f"it has {status.st_size:,} bytes", str(self.path / name))
            return os.read(descriptor, MAX_BYTES), status
        finally:
            os.close(descriptor)

    def write_new(self, name: str, data: bytes, mode: int = 0o644) -> None:
        """Writes a new file, by default one that all may read."""
        descriptor = world.open(name, _NEW, 0o600, dir_fd=self.descriptor)
        try:
            os.fchmod(descriptor, mode)
            files.write_all(descriptor, 0, data)
        finally:
            os.close(descriptor)

    def publish(self, name: str, data: bytes, mode: int = 0o644) -> None:
        """Writes a file under a name that may exist; nobody sees a part of it, and a crash leaves `.<name>.<token>`."""
        aside = f".{name}.{world.random_bytes(8).hex()}"
        try:
            self.write_new(aside, data, mode)
            self.rename(aside, name)
        except BaseException:
            with suppress(OSError):
                self.unlink(aside)
            raise

    def rename(self, name: str, new: str) -> None:
        """Renames an entry within the folder."""
        world.replace(name, new, src_dir_fd=self.descriptor, dst_dir_fd=self.descriptor)

    def link(self, name: str, new: str) -> None:
        """Gives a file a second name, which must be free."""
        os.link(name, new, src_dir_fd=self.descriptor, dst_dir_fd=self.descriptor)

    def make(self, name: str, mode: int = 0o755) -> OpenFolder:
        """Returns a folder below this one, made if it is missing; raises OSError if the name is not a folder's."""
        with suppress(FileExistsError):
            os.mkdir(name, mode, dir_fd=self.descriptor)
        return self.below(name)

    def unlink(self, name: str) -> None:
        """Removes a file or link."""
        os.unlink(name, dir_fd=self.descriptor)

    def rmdir(self, name: str) -> None:
        """Removes an empty folder."""
        os.rmdir(name, dir_fd=self.descriptor)

    def touch(self, name: str) -> None:
        """Renews an entry's times."""
        world.touch(name, dir_fd=self.descriptor)

    def sizes(self, depth: int = _MAX_DEPTH) -> Iterator[int]:
        """Yields the bytes that each file in the folder and below it takes: of a sparse file, only what was written."""
        with os.scandir(self.descriptor) as entries:
            for entry in entries:
                if not entry.is_dir(follow_symlinks=False):
                    status = entry.stat(follow_symlinks=False)
                    yield min(status.st_size, status.st_blocks * 512)
                elif depth:
                    with self.below(entry.name) as inner:
                        yield from inner.sizes(depth - 1)

    def remove(self, name: str, owner: int, depth: int = _MAX_DEPTH) -> bool:
        """Removes an entry and everything below it that belongs to `owner`; returns whether nothing is left.

        Links are removed and not followed, and other file systems are not entered. A missing entry counts as removed.
        """
        status = self.look(name)
        if status is None:
            return True
        if status.st_uid != owner or status.st_dev != self.status.st_dev or not depth:
            return False
        try:
            if not stat.S_ISDIR(status.st_mode):
                self.unlink(name)
                return True
            with self.below(name) as inner:
                left = [each for each in inner.names() if not inner.remove(each, owner, depth - 1)]
                if left:
                    return False
            self.rmdir(name)
        except FileNotFoundError:
            pass  # another process removes the same
        return True
