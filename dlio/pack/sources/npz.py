"""Arrays of NumPy whose rows are samples: an `.npz`, an `.npy`, or a folder of `.npy` files, each array a field.

`images`, `img`, `data` and `x` are the field `image`; `labels`, `target` and `y` are `label`. Of arrays such as
`x_train` and `x_test`, `split` takes one part. Compressed arrays are unpacked in memory, others are read row by row.
"""

from __future__ import annotations

import math
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dlio.dataset.schema import NUMBER_TYPES, Array, Field, Fields, Sample, Schema
from dlio.errors import SourceError, UsageError
from dlio.formats.layouts.aliases import field_names
from dlio.formats.payloads import npy
from dlio.io import limits
from dlio.io.files import storage_errors
from dlio.io.random_access import RandomAccessFile
from dlio.pack.listing.archive_members import bounded, read_local_header
from dlio.pack.listing.base import Listing, read_ahead
from dlio.pack.listing.image_files import file_state, version_of
from dlio.pack.listing.keys import Keys
from dlio.pack.prefetch import Prefetcher

SUFFIX, _ARRAY = ".npz", ".npy"
_CHECKED_BYTES = 1 << 20
_ALWAYS_ROWS = 1 << 24  # of a small file, which may be compressed; the memory for keys grows with them
_MOST_UNPACKED = 4 << 30  # bytes of a compressed array, which every worker holds in memory


def npz(path: str | Path, columns: str = "", split: str = "") -> Npz:
    """Returns the rows of the arrays at `path`.

    Args:
        path: an `.npz` or `.npy` file, or a folder of `.npy` files.
        columns: the names of the arrays to take, with commas between them; by default all.
        split: takes arrays with this word in their names, such as `train` of `x_train` and `y_train`.
    """
    return Npz(Path(path).absolute(), tuple(filter(None, columns.split(","))), split)


open_source = npz


def recognises(path: Path) -> bool:
    """Returns whether `path` is a file of arrays, or a folder with `.npy` files and nothing else but hidden ones."""
    if path.is_dir():
        return {each.suffix for each in path.iterdir() if each.name[0] != "."} == {_ARRAY}
    return path.suffix in (SUFFIX, _ARRAY) and path.is_file()


@dataclass(frozen=True, slots=True)
class _Rows:
    """An array in a file: its rows are read from `offset` on, or are in `unpacked`."""

    file: Path
    dtype: np.dtype[np.generic]
    shape: tuple[int, ...]
    offset: int
    unpacked: Array | None = None

    @property
    def row_bytes(self) -> int:
        return math.prod(self.shape[1:]) * self.dtype.itemsize

    def read(self, file: RandomAccessFile, first: int, count: int) -> Array:
        """Returns some rows, in this machine's byte order."""
        if self.unpacked is not None:
            found = self.unpacked[first : first + count]
        else:
            data = file.read(self.offset + first * self.row_bytes, count * self.row_bytes)
            found = np.frombuffer(data, self.dtype).reshape(count, *self.shape[1:])
        return found.astype(self.dtype.newbyteorder("="))


@dataclass(frozen=True, slots=True)
class Npz:
    """See `npz`."""

    path: Path
    columns: tuple[str, ...]
    split: str
    name: str = "npz"

    def listing(self) -> Listing:
        """Returns all rows in order; a key is the file's name and the row's number."""
        arrays = self._arrays(is_checked=True)
        lengths = {name: rows.shape[0] for name, rows in arrays.items()}
        if len(set(lengths.values())) != 1:
            told = ", ".join(f"{name} {count:,}" for name, count in lengths.items())
            problem = f"its arrays have different numbers of rows ({told})"
            raise UsageError(f"{self.path}: {problem}: select some with --option columns= or split=")
        count = next(iter(lengths.values()))
        most = max(_ALWAYS_ROWS, sum(file.stat().st_size for file in {rows.file for rows in arrays.values()}))
        if not 0 < count <= most:
            raise SourceError(f"{self.path}: its arrays have {count or 'no'} rows, expected 1 to {most:,}")
        types = {name: str(_field(name, rows)) for name, rows in arrays.items()}
        order = sorted(types, key=lambda name: {"image": 0, "label": 1}.get(name, 2))
        schema = Schema.of({name: types[name] for name in order})
        labels = {}
        if types.get("label") == "int64":
            with closing(RandomAccessFile(arrays["label"].file)) as file:
                labels["label"] = arrays["label"].read(file, 0, count).astype("int64")
        keys = Keys.of(f"{self.path.stem}/{row:06d}" for row in range(count))
        version = version_of(*(file_state(str(file))[1] for file in {rows.file for rows in arrays.values()}))
        sizes = np.full(count, sum(rows.row_bytes for rows in arrays.values()))
        row_numbers = {"row": np.arange(count)}
        return Listing(schema, keys, sizes, labels | row_numbers, (), versions=np.full(count, version))

    def _arrays(self, *, is_checked: bool = False) -> dict[str, _Rows]:
        """Returns the arrays by their fields, compared with their checksums if asked to; raises DlioError."""
        with storage_errors("read", self.path):
            self.path.stat()
            found = dict(_members(self.path, is_checked) if self.path.suffix == SUFFIX else _files(self.path))
        if missing := [name for name in self.columns if name not in found]:
            raise UsageError(f"{self.path} has no array {missing[0]!r}, only {', '.join(found)}")
        taken = {name: find for name, find in found.items() if name in self.columns or not self.columns}
        if self.split:
            parts = {name: [word for word in name.split("_") if word != self.split] for name in taken}
            taken = {
                "_".join(parts[name]) or "x": find for name, find in taken.items() if self.split in name.split("_")
            }
        if not taken:
            raise UsageError(f"{self.path} has no arrays{f' of {self.split!r}' if self.split else ''}: {list(found)}")
        held = field_names(list(taken))
        return {held[name]: find() for name, find in taken.items()}

    def reader(self, listing: Listing) -> Prefetcher[Sample]:
        """Gives a function that reads one row of each array."""
        arrays, numbers = self._arrays(), listing.columns["row"].tolist()
        files = {file: RandomAccessFile(file) for file in {rows.file for rows in arrays.values()}}

        def read(index: int) -> Fields:
            row = numbers[index]
            return {name: arrays[name].read(files[arrays[name].file], row, 1)[0] for name in listing.schema}

        return read_ahead(listing, read, *files.values())


def _field(name: str, rows: _Rows) -> Field:
    if rows.dtype.name not in NUMBER_TYPES:
        raise SourceError(f"{rows.file}: the array {name!r} holds {rows.dtype}, which no type of field can hold")
    is_label = name == "label" and len(rows.shape) == 1 and rows.dtype.kind in "iu" and rows.dtype.name != "uint64"
    return Field("int64") if is_label else Field(rows.dtype.name, rows.shape[1:])


def _rows(file: Path, head: bytes, offset: int, num_bytes: int, name: str) -> _Rows:
    """Returns the array of `num_bytes` in `file` from `offset` on, which begins with `head`."""
    try:
        dtype, shape, by_columns, begins = npy.parse_head(head)
        if not shape or (by_columns and len(shape) > 1):
            raise ValueError("its rows are not contiguous: save numpy.ascontiguousarray(x)")
        _check_values(shape)
        if math.prod(shape) * dtype.itemsize != num_bytes - begins:
            raise ValueError(f"it has {num_bytes - begins:,} bytes, expected {list(shape)} of {dtype}")
        return _Rows(file, dtype, shape, offset + begins)
    except ValueError as error:
        raise SourceError(f"{file}: the array {name!r}: {error}") from None


def _check_values(shape: tuple[int, ...]) -> None:
    """Raises ValueError if rows have no values: any number of them would take no bytes."""
    if not math.prod(shape[1:]):
        raise ValueError(f"its rows have no values: {list(shape)}")


def _files(path: Path) -> Iterator[tuple[str, Callable[[], _Rows]]]:
    for file in sorted(path.glob(f"*{_ARRAY}")) if path.is_dir() else [path]:

        def rows(file: Path = file) -> _Rows:
            with closing(RandomAccessFile(file)) as opened:
                head = opened.read(0, min(npy.HEAD_BYTES, opened.num_bytes))
                return _rows(file, head, 0, opened.num_bytes, file.stem)

        yield file.stem, rows


def _members(path: Path, is_checked: bool) -> Iterator[tuple[str, Callable[[], _Rows]]]:
    try:
        with path.open("rb") as file, zipfile.ZipFile(bounded(file, path, limits.sample_bytes())) as archive:
            members = archive.infolist()
    except (zipfile.BadZipFile, NotImplementedError, ValueError) as error:
        raise SourceError(f"{path} is not an .npz of NumPy: {error}: save it again") from error
    for member in members:
        name = member.filename.removesuffix(_ARRAY)

        def rows(member: zipfile.ZipInfo = member, name: str = name) -> _Rows:
            is_stored = member.compress_type == zipfile.ZIP_STORED
            return _stored(path, member, name, is_checked) if is_stored else _unpacked(path, member, name)

        yield name, rows


def _stored(path: Path, member: zipfile.ZipInfo, name: str, is_checked: bool) -> _Rows:
    with closing(RandomAccessFile(path)) as file:
        offset, crc = read_local_header(file, member.header_offset).data_offset, 0
        for at in range(0, member.file_size if is_checked else 0, _CHECKED_BYTES):
            crc = zlib.crc32(file.read(offset + at, min(_CHECKED_BYTES, member.file_size - at)), crc)
        if is_checked and crc != member.CRC:
            raise SourceError(f"{path}: the array {name!r} is damaged: its CRC-32 differs: restore the file")
        head = file.read(offset, min(npy.HEAD_BYTES, member.file_size))
    return _rows(path, head, offset, member.file_size, name)


def _unpacked(path: Path, member: zipfile.ZipInfo, name: str) -> _Rows:
    if member.file_size > _MOST_UNPACKED:
        problem = f"the array {name!r} has {member.file_size:,} bytes"
        raise SourceError(f"{path}: {problem}: save it by numpy.savez, which does not compress")
    try:
        data, filled = memoryview(bytearray(member.file_size)), 0  # reading all at once would take it twice
        with zipfile.ZipFile(path) as archive, archive.open(member) as file:
            while block := file.read(_CHECKED_BYTES):
                data[filled : filled + len(block)] = block
                filled += len(block)
        found = npy.view(data[:filled])
        _check_values(found.shape)
    except (zipfile.BadZipFile, zlib.error, NotImplementedError, ValueError, EOFError, RuntimeError) as error:
        raise SourceError(f"{path}: the array {name!r} is damaged: {error}") from error
    return _Rows(path, found.dtype, found.shape, 0, found)
