"""MDS: the shards of MosaicML Streaming (streaming `base/format/mds/{writer,reader,encodings}.py`), read only.

A shard, little-endian, of up to 2^32 bytes:

    u32 n | u32 offsets[n + 1] in the file | configuration, JSON | n samples
    sample: u32 size of each column whose size varies | the columns' values, in the configuration's order

    encoding                     field                        value
    bytes jpeg png               bytes                        the bytes
    str json                     str                          UTF-8
    int  int8 ... float64        int64, that number           the number
    str_int str_float            int64, float64               decimal digits
    ndarray:TYPE:N,M             TYPE[N,M]                    the array
    ndarray:TYPE  ndarray        TYPE[?,...]                  [u8 type] u8 dims << 2 | log2 of their bytes, dims, array

A column called `images` or `x` is read as the field `image`, and one called `class` or `y` as `label`, if no
column has that name. Columns of pickles (`pkl`) are code and are refused; raw images (`pil`) and `str_decimal` are not
read. Shards have no checksums and no keys.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from dlio.dataset.schema import NUMBER_TYPES, Field, Fields, Sample, Schema, Value
from dlio.errors import MALFORMED, CorruptRecordError, corrupt_errors
from dlio.formats.layouts.aliases import stored_name
from dlio.formats.readonly import not_written
from dlio.io.files import closed_on_error
from dlio.io.random_access import Numbers, RandomAccessFile

Plain = tuple[Field | None, Callable[[bytes], Value]]  # the field of an encoding, and what decodes its values

SUFFIX = ".mds"
BYTES: Plain = (Field("bytes"), bytes)
TEXT: Plain = (Field("str"), bytes.decode)
_PLAIN: dict[str, Plain] = dict.fromkeys(("bytes", "jpeg", "png"), BYTES) | dict.fromkeys(("str", "json"), TEXT)
_PLAIN |= {"str_int": (Field("int64"), int), "str_float": (Field("float64"), float)}
_SHAPE = re.compile(r"[0-9]{1,18}(?:,[0-9]{1,18})*")
_TYPE_CODES = {  # the number of bits, plus 0, 1 or 2
    bits + kind: f"{name}{bits}"
    for kind, name in enumerate(("uint", "int", "float"))
    for bits in (8, 16, 32, 64)
    if f"{name}{bits}" in NUMBER_TYPES
}
refuses = not_written("MDS")


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a shard.

    Attributes:
        name, encoding: as the shard's writer gave them.
        num_bytes: the size of its values in bytes, None if that varies.
        field: the field that its values make, None if they are not read or contain their shape.
        decode: returns the value that some bytes are, or raises ValueError.
    """

    name: str
    encoding: str
    num_bytes: int | None
    field: Field | None
    decode: Callable[[bytes], Value]


def _column(name: str, encoding: str, num_bytes: int | None) -> Column:
    kind, _, of = encoding.partition(":")
    dtype, _, shape = of.partition(":")
    field, decode = _PLAIN.get(kind, (None, partial(refused, f"the column {name!r} is encoded as {encoding!r}")))
    if kind in NUMBER_TYPES or kind == "int":
        field = Field("int64" if kind == "int" else kind)
        decode = partial(numbers, dtype=field.dtype, shape=[])
    elif kind == "ndarray" and dtype in NUMBER_TYPES and _SHAPE.fullmatch(shape):
        field = Field(dtype, tuple(map(int, shape.split(","))))
        decode = partial(numbers, dtype=dtype, shape=list(field.fixed_shape))
    elif kind == "ndarray" and dtype in {"", *NUMBER_TYPES} and not shape:
        decode = partial(_array, name, dtype)
    return Column(name, encoding, num_bytes, field, decode)


def refused(what: str, data: bytes) -> Value:
    """Raises ValueError: a column's encoding is not read."""
    raise ValueError(f"{what}, which dlio does not read")


def _array(name: str, dtype: str, data: bytes) -> Value:
    """Returns an array that contains its shape, and its type unless that is given."""
    try:
        if not dtype:
            dtype, data = _TYPE_CODES[data[0]], data[1:]
        dims, size = data[0] >> 2, 1 << (data[0] & 3)
        starts = range(1, 1 + dims * size, size)
        shape = [int.from_bytes(data[start : start + size], "little") for start in starts]
    except (IndexError, KeyError):
        raise ValueError(f"the column {name!r} holds no array") from None
    return numbers(data[1 + dims * size :], dtype, shape)


def numbers(data: bytes, dtype: str, shape: list[int]) -> Value:
    """Returns little-endian numbers as an array; raises ValueError where they are not as many as the shape says."""
    try:
        return np.frombuffer(data, dtype=np.dtype(dtype).newbyteorder("<")).astype(dtype).reshape(shape)
    except OverflowError as error:  # a dimension of more than 63 bits
        raise ValueError(f"{len(data)} bytes are not array of the shape {shape}: {error}") from None


def read_offsets(file: RandomAccessFile) -> Numbers:
    """Returns the offset of each sample and of the end of the last one, in bytes, int64 of shape (n + 1,).

    Raises:
        CorruptRecordError: the file is not an MDS shard, or is cut off.
        StorageError: it cannot be read.
    """
    count = int.from_bytes(file.read(0, 4), "little")
    problem = f"its offsets do not increase from {4 * (count + 2)} to its end, {file.num_bytes}: restore the file"
    if int.from_bytes(file.read(4 * (count + 1), 4), "little") != file.num_bytes:  # a large file of any other kind
        raise CorruptRecordError(file.path, problem, offset=4)
    offsets = np.frombuffer(file.read(4, 4 * (count + 1)), dtype="<u4").astype("int64")
    if offsets[0] < 4 * (count + 2) or (np.diff(offsets) < 0).any():
        raise CorruptRecordError(file.path, problem, offset=4)
    return offsets


def read_columns(file: RandomAccessFile) -> list[Column]:
    """Returns the columns that a shard's configuration lists.

    Raises:
        CorruptRecordError: the file is not an MDS shard of version 2.
        StorageError: it cannot be read.
    """
    offsets = read_offsets(file)
    begin = 4 * (len(offsets) + 1)
    problem = "its configuration is not that of MDS, version 2 ({!r}): restore the file"
    with corrupt_errors(file.path, problem, offset=begin, kinds=MALFORMED):
        config = json.loads(file.read(begin, int(offsets[0]) - begin))
        if config["version"] != 2 or config["format"] != "mds":
            raise ValueError(f"of the format {config['format']!r}, version {config['version']!r}")
        lists = (config["column_names"], config["column_encodings"], config["column_sizes"])
        columns = [_column(str(n), str(e), _size(s)) for n, e, s in zip(*lists, strict=True)]
        if len({column.name for column in columns}) != len(columns):
            raise ValueError("two columns of one name")
        return columns


def _size(value: object) -> int | None:
    if value is None or (type(value) is int and value >= 0):
        return value
    raise ValueError(f"a column of {value!r} bytes")


class Reader:
    """Reads a shard by record number."""

    def __init__(self, path: Path, schema: Schema) -> None:
        self._schema = schema
        self._file = RandomAccessFile(path)
        with closed_on_error(self._file):
            self._offsets = read_offsets(self._file)
            self._columns = self._read_columns()
        names = [column.name for column in self._columns]
        self._names = {field: stored_name(field, names) for field in schema}

    def _read_columns(self) -> Sequence[Column]:
        return read_columns(self._file)

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def locate(self, index: int) -> tuple[Path, int | None]:
        return self._file.path, int(self._offsets[:-1][index])

    def read(self, index: int) -> Sample:
        """Returns record `index`; its key is ''."""
        return Sample("", self.values(index, self._names))

    def values(self, index: int, names: Mapping[str, str]) -> Fields:
        """Returns the values of record `index` by the fields in `names`, of the schema's types where it has them.

        Raises:
            CorruptRecordError: the record is damaged, or has no such column.
            StorageError: the file cannot be read.
        """
        offset, end = map(int, self._offsets[index : index + 2])
        data = self._file.read(offset, end - offset, index)
        with corrupt_errors(self._file.path, record=index, offset=offset):
            columns = self._split(data)
            missing = [stored for stored in names.values() if stored not in columns]
            if missing:
                raise ValueError(f"the shard has no column {missing[0]!r}, only {sorted(columns)}")
            found = {name: columns[stored][0].decode(columns[stored][1]) for name, stored in names.items()}
            return {name: self._schema[name].convert(v) if name in self._schema else v for name, v in found.items()}

    def _split(self, data: bytes) -> dict[str, tuple[Column, bytes]]:
        """Returns each column of a sample with its bytes."""
        varying = [column for column in self._columns if not column.num_bytes]
        begin = 4 * len(varying)
        sizes = {column.name: int.from_bytes(data[4 * i : 4 * i + 4], "little") for i, column in enumerate(varying)}
        values = {}
        for column in self._columns:
            end = begin + (column.num_bytes or sizes[column.name])
            values[column.name] = column, data[begin:end]
            begin = end
        if begin != len(data):
            raise ValueError(f"the columns take {begin} bytes, the record has {len(data)}: restore the file")
        return values

    def close(self) -> None:
        self._file.close()
