"""The source of a data set: a mounted folder, an indexed folder of files that lie apart, or a URL (remote.py)."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar, runtime_checkable

import numpy as np

from dlio.dataset.location import TREE, names_url
from dlio.dataset.manifest import NAME, File, Manifest
from dlio.dataset.shard_files import advice_if_lost, files_here, is_apart, list_of
from dlio.errors import CorruptRecordError, StorageError
from dlio.io import files, world
from dlio.io.random_access import Numbers
from dlio.io.threads import SideBySide, in_threads
from dlio.rights.access import PRIVATE, Access, FolderAccess

if TYPE_CHECKING:
    from dlio.formats.layouts.file_list import FileList

_HELD = 128  # open files from which ranges are read
_THREADS = 16  # each stat of a file of a server is a round trip
T = TypeVar("T")
_LOOKED_AT = 256  # files, so that it takes a moment however many there are


@runtime_checkable
class StagingSource(Protocol):
    """A data set to be staged; the methods may be called from several threads."""

    @property
    def manifest(self) -> Manifest:
        """The data set."""

    def name_of(self, file: File) -> str:
        """Returns the path or URL of a file, for messages."""

    def access(self, file: File | None) -> Access:
        """Returns who may read a file, or the manifest if `file` is None.

        Raises:
            StorageError: its status cannot be read.
        """

    def read_range(self, file: File, offset: int, target: memoryview) -> None:
        """Fills `target` with a file's bytes from `offset` on.

        Raises:
            StorageError: the file cannot be read, has another size than the manifest says, or has changed since.
        """

    def close(self) -> None:
        """Closes what `read_range` keeps open; it can be used again."""


def source_of(dataset: str | PathLike[str] | Manifest | StagingSource) -> StagingSource:
    """Returns the source of a data set, with its manifest loaded.

    Raises:
        ManifestError, StorageError: `dataset` holds no data set, its manifest is damaged, or it cannot be read.
        UsageError, MissingPackageError: a URL of an unknown kind, or whose package is not installed.
    """
    if isinstance(dataset, Manifest) and not dataset.url:
        return _mounted(dataset)
    dataset = dataset.url if isinstance(dataset, Manifest) else dataset
    if isinstance(dataset, StagingSource):
        return dataset
    if names_url(dataset):
        from dlio.stage.sources.remote import remote_set

        return remote_set(os.fspath(dataset).removesuffix(f"/{NAME}"))
    return _mounted(Manifest.load(Path(dataset)))


def _mounted(manifest: Manifest) -> StagingSource:
    folder = MountedFolder(manifest)
    return ApartFolder(folder) if any(is_apart(manifest, shard) for shard in manifest.shards[:1]) else folder


def check_readable(manifest: Manifest) -> None:
    """Raises StorageError for a file that a copy could not read: missing, of another size, or not for this user.

    It checks the first file, the last, and evenly spread ones. It reads none, and asks no server of a URL.
    """
    if manifest.root.is_dir():
        shards = _spread(manifest.shards[manifest.format == TREE :])  # without the list, which each copy makes
        chosen = _spread([file for shard in shards for file in files_here(manifest, shard)])
        in_threads(_THREADS, partial(_check_readable, manifest.root), chosen, "dlio-look")


def _spread(items: Sequence[T]) -> list[T]:
    """Returns the first, the last, and evenly spread ones: at most `_LOOKED_AT` and one more."""
    return [*items[:: len(items) // _LOOKED_AT + 1], *items[-1:]]


def _check_readable(root: Path, file: File) -> None:
    path = f"{root}/{file.name}"
    with files.storage_errors("read", path):
        _check_size(path, os.stat(path), file)  # noqa: PTH116  of text
        if not os.access(path, os.R_OK, effective_ids=True):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


class MountedFolder:
    """A data set in a folder; bytes read are dropped from the page cache, which the training needs.

    Args:
        manifest: the data set.
        modified: when its files were changed last, in ns, by their names; a file that has another time is not read. Of
            files not named it is as their first read finds it.
    """

    def __init__(self, manifest: Manifest, modified: Mapping[str, int] | None = None) -> None:
        self.manifest, self._root = manifest, str(manifest.root)
        self._told = modified or {}
        self._modified = dict(self._told)
        self._status: dict[str, os.stat_result] = {}
        self._surroundings = FolderAccess()
        self._held, self._lock = lru_cache(_HELD)(_Held), world.lock()

    def __str__(self) -> str:
        return str(self.manifest.root.absolute())  # written into the copy, so absolute

    def name_of(self, file: File) -> str:
        """Returns the path of a file."""
        return str(self.manifest.root / file.name)

    def access(self, file: File | None) -> Access:
        """Returns who may read a file; see `StagingSource`."""
        path = f"{self._root}/{file.name if file else NAME}"
        with files.storage_errors("access", path):
            if file:
                return self._surroundings.access(path, self._status.pop(file.name, None))
            listing = self._surroundings.access(self.manifest.root).mode
            return replace(self._surroundings.access(path), listing=listing)

    def read_range(self, file: File, offset: int, target: memoryview) -> None:
        """Fills `target`; see `StagingSource`."""
        path = f"{self._root}/{file.name}"  # a tenth of the time of Path's /
        with files.storage_errors("read", path):
            try:
                with self._lock:  # two threads that miss at once would each get their own file
                    held = _Held(path) if len(target) == file.num_bytes else self._held(path)  # nobody reads more of it
                descriptor = held.descriptor()
                missing = files.fill(descriptor, offset, target)
                os.posix_fadvise(descriptor, offset, len(target), os.POSIX_FADV_DONTNEED)
                status = os.fstat(descriptor)
            except OSError as error:
                self._held.cache_clear()  # the server may have started again
                if error.errno == errno.ESPIPE:
                    _check_size(path, os.stat(path), file)  # noqa: PTH116  a pipe has none
                if error.errno == errno.ENOENT and (advice := advice_if_lost(Path(path))):
                    raise StorageError(error.errno, f"cannot read {path}: {error.strerror}{advice}") from error
                raise
        _check_size(path, status, file)
        if missing or self._modified.setdefault(file.name, status.st_mtime_ns) != status.st_mtime_ns:
            if file.name not in self._told:  # the next try may go well; its digest finds what is of two states
                self._modified.pop(file.name, None)
            raise _changed(path)
        self._status[file.name] = status

    def close(self) -> None:
        """Closes what `read_range` keeps open; see `StagingSource`."""
        self._held.cache_clear()


class _Held:
    """A file, opened once and then open while it is referred to: each opening is work for a metadata server."""

    def __init__(self, path: str) -> None:
        self._path, self._lock = path, world.lock()
        self._descriptor: int | None = None

    def descriptor(self) -> int:
        """Returns the open file's; the first thread that asks opens it while others wait for it, and for no other."""
        with self._lock:
            if self._descriptor is None:
                flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK  # opening a pipe does not wait; its size is wrong
                self._descriptor = world.open(self._path, flags)
            return self._descriptor

    def __del__(self, is_ending: Callable[[], bool] = sys.is_finalizing) -> None:
        if self._descriptor is not None and not is_ending():  # then `os` may have lost its names
            os.close(self._descriptor)


def _check_size(path: str, status: os.stat_result, file: File) -> None:
    if status.st_size != file.num_bytes:
        raise StorageError(f"{path} has {status.st_size:,} bytes, not {file.num_bytes:,} as its manifest says")


def _changed(path: str) -> StorageError:
    return StorageError(f"{path} changed while it was copied: stage again once no program writes to it")


class ApartFolder:
    """A data set over files in a folder; see `StagingSource`.

    The files of a group, one after the other, are one file of the copy.
    """

    def __init__(self, others: StagingSource) -> None:
        """Takes the source of the other files: the lists and tables."""
        self.manifest = manifest = others.manifest
        self._others = others
        self._groups = {shard.files[0].name: shard for shard in manifest.shards if is_apart(manifest, shard)}
        self._lists: dict[str, tuple[FileList, str, Numbers]] = {}
        self._lock = world.lock()
        self._threads = SideBySide()

    def __str__(self) -> str:
        return str(self._others)

    def name_of(self, file: File) -> str:
        """Returns the path of a file, or of the folder whose files are one."""
        if file.name in self._groups:
            return f"{file.name} of the files indexed in {self}"
        return self._others.name_of(file)

    def access(self, file: File | None) -> Access:
        """Returns that only this user may read it, since each file in it has its own access."""
        return PRIVATE

    def read_range(self, file: File, offset: int, target: memoryview) -> None:
        """Fills `target`; see `StagingSource`."""
        if file.name not in self._groups:
            self._others.read_range(file, offset, target)
            return
        listed, folder, ends = self._list(file)
        try:
            self._threads.each(lambda piece: listed.fill(*piece, folder), _pieces(listed, ends, offset, target))
        except CorruptRecordError as error:
            raise StorageError(f"{error}; then stage again") from error

    def _list(self, file: File) -> tuple[FileList, str, Numbers]:
        """Returns the list of a group, the folder, and where each of the files ends in the group."""
        with self._lock:
            if file.name not in self._lists:
                listed, folder = list_of(self.manifest, self._groups[file.name])
                ends = np.cumsum(listed.sizes)
                if ends[-1] != file.num_bytes:
                    raise StorageError(f"{listed.path} counts {ends[-1]:,} bytes, the manifest {file.num_bytes:,}")
                self._lists[file.name] = listed, os.fspath(folder), ends
            return self._lists[file.name]

    def close(self) -> None:
        """Ends the threads, and closes what `read_range` keeps open; see `StagingSource`."""
        self._threads.close()
        with self._lock:
            self._lists.clear()
        self._others.close()


def _pieces(listed: FileList, ends: Numbers, offset: int, target: memoryview) -> Iterator[tuple[int, int, memoryview]]:
    """Yields the parts of files that fill `target` with the bytes of the group from `offset` on.

    Of each the number of the file, from which of its bytes on, and where they go.
    """
    number = int(np.searchsorted(ends, offset, side="right"))
    while target:
        start = offset - (int(ends[number]) - int(listed.sizes[number]))
        size = min(len(target), int(ends[number]) - offset)
        yield number, start, target[:size]
        number, offset, target = number + 1, offset + size, target[size:]
