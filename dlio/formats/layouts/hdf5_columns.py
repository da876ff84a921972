"""The values of one field in HDF5 datasets; the docstring of `hdf5` has the layout.

Other tools keep values of varying length in global heaps, to which a row of their dataset refers (HDF5 File Format
Specification 3.0, III.E and IV.A.2.d), little-endian:

    row     u32 length | u64 address of the heap | u32 number of the object
    heap    GCOL | u8 version 1 | 3 zeros | u64 size of all | objects
    object  u16 number | u16 references | 4 zeros | u64 size | data, up to a multiple of 8
            number 0 is free space, and its size counts its head, too

HDF5 1.14 loops forever, holding Python's lock, in a heap whose free space has the size 0.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from dlio.dataset.schema import Field, Value
from dlio.errors import CorruptRecordError
from dlio.formats.layouts.hdf5_rows import LibraryRows, PlainRows, RowWriter, find_rows, load_h5py, open_rows, reading
from dlio.io.random_access import Numbers, RandomAccessFile

if TYPE_CHECKING:
    import h5py

# At most one chunk of each dataset is padding; the writer holds one in memory.
CHUNK_BYTES = 1 << 20  # of what may be large: images and arrays
SMALL_CHUNK_BYTES = 64 << 10
_ROW = struct.Struct("<IQI")
_HEAD = struct.Struct("<4sB3xQ")
_OBJECT = struct.Struct("<HHxxxxQ")


def dataset_names(name: str, kind: Field) -> list[str]:
    """Returns the names of a field's datasets."""
    if kind.is_number:
        return [name]
    return [name, f"{name}_offsets"] if kind.is_scalar else [name, f"{name}_offsets", f"{name}_lists"]


class ColumnWriter:
    """Appends the values of a field to its datasets."""

    def __init__(self, file: h5py.File, name: str, kind: Field, chunk_bytes: int) -> None:
        self._kind = kind
        self._dtype = kind.stored_dtype if kind.is_number else np.dtype("uint8")
        shape = kind.fixed_shape if kind.is_number else ()
        self._rows = RowWriter(file, name, self._dtype, shape, chunk_bytes)
        int64 = np.dtype("<i8")
        self._ends = [RowWriter(file, ends, int64, (), SMALL_CHUNK_BYTES) for ends in dataset_names(name, kind)[1:]]
        for ends in self._ends:
            ends.append(struct.pack("<q", 0))

    def append(self, value: Any) -> None:
        """Appends the value of one sample."""
        if self._kind.is_number:
            self._rows.append(np.asarray(value, dtype=self._dtype).tobytes())
        elif self._kind.is_scalar:
            self._append_item(value)
        else:
            for item in value:
                self._append_item(item)
            self._ends[1].append(struct.pack("<q", self._ends[0].num_rows - 1))

    def _append_item(self, item: bytes | str) -> None:
        self._rows.append(item.encode() if isinstance(item, str) else item)
        self._ends[0].append(struct.pack("<q", self._rows.num_rows))

    def finish(self) -> None:
        """Completes the datasets."""
        for rows in [self._rows, *self._ends]:
            rows.finish()


class ColumnReader(Protocol):
    """Reads the values of a field by record number; thread-safe."""

    @property
    def num_values(self) -> int:
        """The number of records."""

    def read(self, index: int) -> Value:
        """Returns the value of record `index` as its field holds it.

        Raises:
            ValueError: it is not what the field holds.
            CorruptRecordError, StorageError: it cannot be read.
        """

    def locate(self, index: int) -> int | None:
        """Returns the value's offset in the file, in bytes, None if only HDF5 knows it."""


def open_column(library: h5py.File, file: RandomAccessFile, name: str, kind: Field) -> ColumnReader:
    """Returns the values of the field `name` in the open h5py.File `library`.

    Raises:
        CorruptRecordError: its datasets are missing, of another kind, or contradict each other.
    """
    values = _dataset(library, file.path, name)
    if kind.is_number:
        return Numeric(open_rows(file, values), kind)
    if values.dtype.kind in "SO":
        return _Objects(file, values, kind)
    rows = open_rows(file, values)
    if rows.dtype != "uint8" or rows.row_shape:
        raise CorruptRecordError(
            file.path, f"the dataset {name!r} is not a sequence of uint8: it is not a field of {kind}"
        )
    items = Blob(rows, _offsets(library, file, f"{name}_offsets", rows.num_rows), kind)
    return items if kind.is_scalar else _Lists(items, _offsets(library, file, f"{name}_lists", items.num_values), kind)


def _dataset(library: h5py.File, path: Path, name: str) -> h5py.Dataset:
    h5py = load_h5py()
    if not isinstance(library.get(name, getlink=True), h5py.HardLink):
        # the message lists no others: HDF5 may crash when it lists a damaged file
        raise CorruptRecordError(
            path, f"the file holds no dataset {name!r} itself: restore the file, or list its datasets with h5ls"
        )
    found = library[name]
    if not isinstance(found, h5py.Dataset) or found.external or found.is_virtual:
        raise CorruptRecordError(path, f"{name!r} is not a dataset whose data are in this file")
    return found


def _offsets(library: h5py.File, file: RandomAccessFile, name: str, last: int) -> Numbers:
    """Returns offsets that lead from 0 up to `last`, int64."""
    rows = open_rows(file, _dataset(library, file.path, name))
    if rows.dtype.kind not in "iu" or rows.row_shape or not rows.num_rows:
        raise CorruptRecordError(file.path, f"the dataset {name!r} holds no offsets: expected whole numbers")
    offsets = np.frombuffer(rows.read(0, rows.num_rows), dtype=rows.dtype).astype("int64")
    wrong = np.flatnonzero((offsets < 0) | (offsets > last) | (np.diff(offsets, prepend=0) < 0))
    if offsets[0] != 0:
        wrong = np.array([0])
    elif offsets[-1] != last and not wrong.size:
        wrong = np.array([rows.num_rows - 1])
    if wrong.size:
        row = int(wrong[0])
        problem = (
            f"{name} holds {offsets[row]} at this offset, expected increasing numbers from 0 to {last}: restore the "
            "file"
        )
        raise CorruptRecordError(file.path, problem, record=max(row - 1, 0), offset=rows.locate(row))
    return offsets


class Numeric:
    """A row of numbers for each record."""

    def __init__(self, rows: PlainRows | LibraryRows, kind: Field) -> None:
        self._rows = rows
        self._kind = kind
        self.num_values = rows.num_rows

    def read(self, index: int) -> Value:
        dtype = self._rows.dtype
        row = np.frombuffer(self._rows.read(index, index + 1, index), dtype=dtype).reshape(self._rows.row_shape)
        return self._kind.convert(row.astype(dtype.newbyteorder("=")))

    def locate(self, index: int) -> int | None:
        return self._rows.locate(index)

    def bounds(self) -> tuple[Numbers, Numbers] | None:
        """Returns the bounds of each row in the file, int64 of shape (n,), None if only HDF5 knows them."""
        if not isinstance(self._rows, PlainRows) or self._rows.dtype != self._kind.dtype:
            return None
        return self._rows.bounds(np.arange(self.num_values + 1))


class Blob:
    """Bytes or text one after the other, with offsets."""

    def __init__(self, rows: PlainRows | LibraryRows, offsets: Numbers, kind: Field) -> None:
        self._rows = rows
        self._offsets = offsets
        self._is_text = kind.dtype == "str"
        self.num_values = len(offsets) - 1

    def read(self, index: int, record: int | None = None) -> bytes | str:
        start, stop = map(int, self._offsets[index : index + 2])
        data = self._rows.read(start, stop, index if record is None else record)
        return data.decode() if self._is_text else data

    def locate(self, index: int) -> int | None:
        return self._rows.locate(int(self._offsets[index]))

    def bounds(self) -> tuple[Numbers, Numbers] | None:
        """Returns the bounds of each value in the file, int64 of shape (n,), None if only HDF5 knows them.

        A value in several runs has the end of its first run.
        """
        return self._rows.bounds(self._offsets) if isinstance(self._rows, PlainRows) else None


class _Lists:
    """A list of bytes or text for each record."""

    def __init__(self, items: Blob, bounds: Numbers, kind: Field) -> None:
        self._items = items
        self._bounds = bounds
        self._kind = kind
        self.num_values = len(bounds) - 1

    def read(self, index: int) -> Value:
        start, stop = map(int, self._bounds[index : index + 2])
        return self._kind.convert([self._items.read(item, index) for item in range(start, stop)])

    def locate(self, index: int) -> int | None:
        return self._items.locate(min(int(self._bounds[index]), self._items.num_values - 1))


class _Objects:
    """Strings, or arrays of varying length, which HDF5 keeps in heaps."""

    def __init__(self, file: RandomAccessFile, values: h5py.Dataset, kind: Field) -> None:
        h5py, path = load_h5py(), file.path
        element = h5py.check_vlen_dtype(values.dtype)
        if values.ndim != 1 or not kind.is_scalar or not (element == "uint8" or h5py.check_string_dtype(values.dtype)):
            raise CorruptRecordError(
                path, f"the dataset {values.name} holds {values.dtype}: it is not a field of {kind}"
            )
        self._path = path
        self._values = values
        self._is_text = kind.dtype == "str"
        self._heaps = _Heaps(file)
        rows = find_rows(file, values)
        self._references = rows if isinstance(rows, PlainRows) and values.dtype.kind == "O" else None
        self.num_values = len(values)

    def read(self, index: int) -> bytes | str:
        if self._references is not None:
            self._heaps.check(self._references.read(index, index + 1, index), index)
        with reading(self._path, index):
            data = bytes(self._values[index])
        return data.decode() if self._is_text else data

    def locate(self, index: int) -> int | None:
        return None


class _Heaps:
    """The heaps of a file, each checked once; the library itself finds all other damage."""

    def __init__(self, file: RandomAccessFile) -> None:
        self._file = file
        self._checked: set[int] = set()

    def check(self, row: bytes, record: int) -> None:
        """Checks the heap to which a row refers.

        Raises:
            CorruptRecordError: the library would never return.
            StorageError: the file cannot be read.
        """
        address = _ROW.unpack(row)[1] if len(row) == _ROW.size else self._file.num_bytes
        if address not in self._checked and address + _HEAD.size <= self._file.num_bytes:
            self._walk(address, record)
            self._checked.add(address)

    def _walk(self, address: int, record: int) -> None:
        magic, _, num_bytes = _HEAD.unpack(self._file.read(address, _HEAD.size, record))
        at, end = address + _HEAD.size, min(address + num_bytes, self._file.num_bytes)
        while magic == b"GCOL" and at + _OBJECT.size <= end:
            number, _, size = _OBJECT.unpack(self._file.read(at, _OBJECT.size, record))
            if not number and not size:
                problem = "the free space of an HDF5 heap has the size 0: restore the file"
                raise CorruptRecordError(self._file.path, problem, record=record, offset=at)
            at += _OBJECT.size + -(-size // 8) * 8 if number else size
