"""An indexed folder of files as a source: the files of a group, one after the other, are one file of the copy."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dlio.dataset.manifest import File
from dlio.dataset.shard_files import is_apart, list_of
from dlio.errors import CorruptRecordError, StorageError
from dlio.io.random_access import Numbers
from dlio.io.threads import SideBySide
from dlio.rights.access import PRIVATE, Access

if TYPE_CHECKING:
    from dlio.formats.layouts.file_list import FileList
    from dlio.stage.transfer.source import StagingSource


@dataclass(frozen=True, slots=True)
class _Piece:
    """A part of one of the files: which, from which of its bytes on, and where it goes."""

    number: int
    offset: int
    target: memoryview


class ApartFolder:
    """A data set over files in a folder; see `StagingSource`."""

    def __init__(self, others: StagingSource) -> None:
        """Takes the source of the other files: the lists and tables."""
        self.manifest = manifest = others.manifest
        self._others = others
        self._groups = {shard.files[0].name: shard for shard in manifest.shards if is_apart(manifest, shard)}
        self._lists: dict[str, tuple[FileList, str, Numbers]] = {}
        self._lock = threading.Lock()
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
            self._threads.each(
                lambda piece: listed.fill(piece.number, folder, piece.offset, piece.target),
                _pieces(listed, ends, offset, target),
            )
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


def _pieces(listed: FileList, ends: Numbers, offset: int, target: memoryview) -> Iterator[_Piece]:
    """Yields the parts of files that fill `target` with the bytes of the group from `offset` on."""
    number = int(np.searchsorted(ends, offset, side="right"))
    while target:
        start = offset - (int(ends[number]) - int(listed.sizes[number]))
        size = min(len(target), int(ends[number]) - offset)
        yield _Piece(number, start, target[:size])
        number, offset, target = number + 1, offset + size, target[size:]
