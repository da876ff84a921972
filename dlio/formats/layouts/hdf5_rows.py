"""Rows of HDF5 datasets: written as whole chunks, and read by offset.

HDF5's own reading takes one lock for the process and copies through a chunk cache. Uncompressed rows (contiguous, or in
unfiltered chunks of whole rows) are therefore read with plain reads, at offsets that HDF5 returns once; rows of any
other layout are read through h5py.
"""

from __future__ import annotations

import os
import re
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dlio.errors import CorruptRecordError, library_errors, needs_package
from dlio.io.files import storage_errors
from dlio.io.random_access import Numbers, RandomAccessFile

if TYPE_CHECKING:
    import h5py

reading = partial(library_errors, "HDF5")
_ERRNO = re.compile(r"errno = ([0-9]+)")
Dtype = np.dtype[np.generic]
_DEFLATE_RATIO = 1032  # the most that zlib can shrink anything


def load_h5py() -> Any:
    """Returns the package h5py, without file locks if this call loads it and the user has not set them.

    Parallel file systems may have no locks; HDF5 reads the variable only when it is loaded.

    Raises:
        MissingPackageError: it is not installed.
    """
    os.environ.setdefault("HDF5_USE_FILE_LOCKING", "FALSE")
    with needs_package("h5py", "hdf5", "HDF5"):
        import h5py
    return h5py


def create(path: Path) -> h5py.File:
    """Returns a new h5py.File without times, so that equal content gives equal bytes.

    In HDF5 1.10's form, which 1.10 and later read, everything but the data carries a checksum.
    """
    h5 = load_h5py()
    creation = h5.h5p.create(h5.h5p.FILE_CREATE)
    creation.set_obj_track_times(False)
    access = h5.h5p.create(h5.h5p.FILE_ACCESS)
    access.set_libver_bounds(h5.h5f.LIBVER_V110, h5.h5f.LIBVER_V110)
    return h5.File(h5.h5f.create(bytes(path), h5.h5f.ACC_TRUNC, fcpl=creation, fapl=access))


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turns h5py's errors into StorageError."""
    try:
        yield
    except (OSError, RuntimeError) as error:
        number = _ERRNO.search(str(error))  # h5py has it in the message only
        with storage_errors("write", path):
            raise OSError(int(number[1]), os.strerror(int(number[1]))) if number else OSError(str(error)) from error


class RowWriter:
    """Appends rows to a new dataset; holds back less than a chunk."""

    def __init__(self, file: h5py.File, name: str, dtype: Dtype, row_shape: tuple[int, ...], chunk_bytes: int) -> None:
        self._row_bytes = dtype.itemsize * prod(row_shape)
        self._chunk_rows = max(1, chunk_bytes // self._row_bytes)
        self._dataset = file.create_dataset(
            name,
            shape=(0, *row_shape),
            maxshape=(None, *row_shape),
            chunks=(self._chunk_rows, *row_shape),
            dtype=dtype,
        )
        self._chunk = memoryview(bytearray(self._chunk_rows * self._row_bytes))
        self._filled = 0
        self._num_chunks = 0
        self.num_rows = 0

    def append(self, rows: bytes) -> None:
        """Appends the bytes of whole rows."""
        self.num_rows += len(rows) // self._row_bytes
        start, room = 0, len(self._chunk) - self._filled
        while len(rows) - start >= room:
            self._chunk[self._filled :] = memoryview(rows)[start : start + room]
            self._write_chunk()
            start, room = start + room, len(self._chunk)
        end = self._filled + len(rows) - start
        self._chunk[self._filled : end] = memoryview(rows)[start:] if start else rows
        self._filled = end

    def finish(self) -> None:
        """Writes what is left and cuts the dataset to its rows."""
        if self._filled:
            self._chunk[self._filled :] = bytes(len(self._chunk) - self._filled)
            self._write_chunk()
        self._dataset.resize(self.num_rows, axis=0)

    def _write_chunk(self) -> None:
        start = self._num_chunks * self._chunk_rows
        self._num_chunks += 1
        self._filled = 0
        self._dataset.resize(start + self._chunk_rows, axis=0)
        self._dataset.id.write_direct_chunk((start,) + (0,) * (self._dataset.ndim - 1), self._chunk)


class PlainRows:
    """Uncompressed rows, in one or more runs of the file; thread-safe."""

    def __init__(self, file: RandomAccessFile, dataset: h5py.Dataset, runs: list[tuple[int, int]]) -> None:
        """Takes over the layout of `dataset`; `runs` are the first row and the file offset of each run."""
        self._file = file
        self.dtype: Dtype = dataset.dtype
        self.num_rows: int = dataset.shape[0]
        self.row_shape: tuple[int, ...] = dataset.shape[1:]
        self._row_bytes: int = _item_bytes(dataset) * prod(self.row_shape)
        self._starts: list[int] = [start for start, _ in runs] + [self.num_rows]
        self._offsets: list[int] = [offset for _, offset in runs]

    def locate(self, row: int) -> int | None:
        """Returns the offset of a row in the file, in bytes."""
        run = bisect_right(self._starts, row) - 1
        return self._offset(run, row) if run < len(self._offsets) else None

    def bounds(self, rows: Numbers) -> tuple[Numbers, Numbers] | None:
        """Returns the bounds in the file of the rows between neighbours of `rows`, up to the end of their run.

        Args:
            rows: increasing row numbers, from 0 up to `num_rows`; int64 of shape (n + 1,).
        """
        if not self._offsets:
            return None
        runs = np.searchsorted(self._starts, rows[:-1], side="right") - 1
        runs = np.minimum(runs, len(self._offsets) - 1)
        shifts = np.array(self._offsets)[runs] - np.array(self._starts)[runs] * self._row_bytes
        stops = np.minimum(rows[1:], np.array(self._starts)[runs + 1])
        return shifts + rows[:-1] * self._row_bytes, shifts + stops * self._row_bytes

    def read(self, start: int, stop: int, record: int | None = None) -> bytes:
        """Returns the bytes of the rows from `start` up to `stop`.

        Raises:
            CorruptRecordError: they go beyond the end of the file; names `record`.
            StorageError: the file cannot be read.
        """
        parts = []
        run = bisect_right(self._starts, start) - 1
        while start < stop:
            end = min(stop, self._starts[run + 1])
            parts.append(self._file.read(self._offset(run, start), (end - start) * self._row_bytes, record))
            start, run = end, run + 1
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _offset(self, run: int, row: int) -> int:
        return self._offsets[run] + (row - self._starts[run]) * self._row_bytes


class LibraryRows:
    """Rows that only HDF5 can find or unpack; thread-safe by the lock of h5py."""

    def __init__(self, path: Path, dataset: h5py.Dataset) -> None:
        self._path = path
        self._dataset = dataset
        self.dtype: Dtype = dataset.dtype
        self.num_rows: int = dataset.shape[0]
        self.row_shape: tuple[int, ...] = dataset.shape[1:]

    def locate(self, row: int) -> int | None:
        """Returns None: such a row has no offset of its own."""
        return None

    def read(self, start: int, stop: int, record: int | None = None) -> bytes:
        """Returns the bytes of the rows from `start` up to `stop`; raises as PlainRows."""
        with reading(self._path, record):
            return bytes(self._dataset[start:stop].tobytes())


def open_rows(file: RandomAccessFile, dataset: h5py.Dataset) -> PlainRows | LibraryRows:
    """Returns the rows of a dataset of numbers.

    Raises:
        CorruptRecordError: it is of another kind, or claims more bytes than the file can hold.
    """
    if dataset.dtype.kind not in "biuf" or not dataset.shape:
        raise CorruptRecordError(file.path, f"the dataset {dataset.name} holds {dataset.dtype}, not rows of numbers")
    return find_rows(file, dataset)


def find_rows(file: RandomAccessFile, dataset: h5py.Dataset) -> PlainRows | LibraryRows:
    """Returns the rows of a dataset, of values in heaps their references; raises as `open_rows`."""
    runs = _runs(dataset) if dataset.size else None
    claimed = _item_bytes(dataset) * prod(dataset.shape)
    if claimed > file.num_bytes * (_DEFLATE_RATIO if runs is None else 1):
        problem = f"the dataset {dataset.name} claims {claimed} bytes, the file has {file.num_bytes}: restore it"
        raise CorruptRecordError(file.path, problem)
    outside = next((offset for _, offset in runs or () if offset > file.num_bytes), None)
    if outside is not None:
        problem = f"the dataset {dataset.name} has rows at {outside}, the file ends at {file.num_bytes}: restore it"
        raise CorruptRecordError(file.path, problem)
    return LibraryRows(file.path, dataset) if runs is None else PlainRows(file, dataset, runs)


def _item_bytes(dataset: h5py.Dataset) -> int:
    """Returns the bytes of a value in the file, or of its reference if it is in a heap."""
    return int(dataset.id.get_type().get_size() if dataset.dtype.kind == "O" else dataset.dtype.itemsize)


def _runs(dataset: h5py.Dataset) -> list[tuple[int, int]] | None:
    """Returns first row and file offset of each run of adjacent rows, None if only HDF5 can read them."""
    h5d = load_h5py().h5d
    layout = dataset.id.get_create_plist()
    if layout.get_nfilters() or dataset.file.userblock_size:
        return None
    if layout.get_layout() == h5d.CONTIGUOUS:
        offset = dataset.id.get_offset()
        return None if offset is None else [(0, offset)]
    if layout.get_layout() != h5d.CHUNKED or dataset.chunks[1:] != dataset.shape[1:]:
        return None
    return _joined(dataset)


def _joined(dataset: h5py.Dataset) -> list[tuple[int, int]] | None:
    step, zeros = dataset.chunks[0], (0,) * (dataset.ndim - 1)
    chunk_bytes = _item_bytes(dataset) * prod(dataset.chunks)
    runs: list[tuple[int, int]] = []
    end = None
    for row in range(0, len(dataset), step):
        offset = dataset.id.get_chunk_info_by_coord((row, *zeros)).byte_offset
        if offset is None:
            return None
        if offset != end:
            runs.append((row, offset))
        end = offset + chunk_bytes
    return runs
