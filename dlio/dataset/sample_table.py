"""The table beside each shard: key, checksum and small numbers of every sample, whatever the format.

Containers keep a key only in their ecosystem's form, and most keep no checksum of a record. `STEM.samples.npz` keeps
both exactly, so that damage is found and named, and labels are known without reading images. It is an uncompressed
`.npz` of numpy with these arrays over the shard's n samples, each compared with its CRC-32 when it is first read:

    key_bytes    uint8    the keys, UTF-8, one after the other
    key_offsets  int64    n + 1 positions in key_bytes
    crc32c       uint32   n checksums, as `dlio.dataset.checksum.crc32c` defines them
    num_bytes    int64    n sizes: the bytes of all values, text as UTF-8, numbers that are no arrays 8 each
    field_NAME   dtype    n values of each field of numbers that takes up to 256 bytes a sample
"""

from __future__ import annotations

import io
import struct
import zipfile
from itertools import accumulate, pairwise
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dlio.dataset.checksum import crc32c
from dlio.dataset.schema import Field, Sample, Schema
from dlio.dataset.stored_zip import read_directory, read_member
from dlio.errors import CorruptRecordError
from dlio.formats.payloads import npy
from dlio.io.random_access import PositionalFile

if TYPE_CHECKING:
    import numpy as np

SUFFIX = ".samples.npz"
_NUMBERS = {"crc32c": "uint32", "num_bytes": "int64"}  # columns that every table has, a number a sample
_CODES = {"int8": "b", "int16": "h", "int32": "i", "int64": "q", "bool": "?"}  # of struct
_CODES |= {"uint8": "B", "uint16": "H", "uint32": "I", "uint64": "Q", "float16": "e", "float32": "f", "float64": "d"}
_MAX_COLUMN_BYTES = 256  # a vector of 64 float32 labels; larger arrays are data, not labels


def columns(schema: Schema) -> dict[str, Field]:
    """Returns the fields that the table keeps."""
    return {name: kind for name, kind in schema.items() if kind.is_fixed and _num_bytes(kind) <= _MAX_COLUMN_BYTES}


def _num_bytes(kind: Field) -> int:
    return prod(kind.fixed_shape) * struct.calcsize(_CODES[kind.dtype])


class SampleTableBuilder:
    """Collects the rows of one shard's table; used by one thread."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._keys: list[bytes] = []
        self._crcs: list[int] = []
        self._sizes: list[int] = []
        self._values: dict[str, list[Any]] = {name: [] for name in columns(schema)}

    def __len__(self) -> int:
        return len(self._keys)

    def append(self, sample: Sample) -> None:
        """Adds the row of a sample that `Schema.check` has returned."""
        self._keys.append(sample.key.encode())
        self._crcs.append(crc32c(sample, self._schema))
        num_bytes = 0
        for value in sample.fields.values():
            num_bytes += len(value) if type(value) is bytes else 8 if type(value) is int else _size(value)
        self._sizes.append(num_bytes)
        for name, values in self._values.items():
            values.append(sample.fields[name])

    def to_bytes(self) -> bytes:
        """Returns the table's file; equal rows give equal bytes."""
        arrays = _key_arrays(self._keys)
        arrays |= {"crc32c": _numbers("uint32", self._crcs), "num_bytes": _numbers("int64", self._sizes)}
        for name, kind in columns(self._schema).items():
            values = self._values[name]
            arrays[f"field_{name}"] = _array(kind, values) if kind.shape else _numbers(kind.dtype, values)
        return _dump(arrays)


def _size(value: Any) -> int:
    if isinstance(value, bytes):
        return len(value)
    if isinstance(value, str):
        return len(value.encode())
    return sum(map(_size, value)) if isinstance(value, list) else getattr(value, "nbytes", 8)


def _key_arrays(keys: list[bytes]) -> dict[str, bytes]:
    text = b"".join(keys)
    offsets = _numbers("int64", list(accumulate(map(len, keys), initial=0)))
    return {"key_bytes": npy.header("|u1", (len(text),)) + text, "key_offsets": offsets}


def _numbers(dtype: str, values: list[Any]) -> bytes:
    """Returns the file of an array of one number a sample, made without numpy, which takes long to load."""
    code = _CODES[dtype]
    size = struct.calcsize(code)
    header = npy.header(f"{'<' if size > 1 else '|'}{dtype[0]}{size}", (len(values),))
    return header + struct.pack(f"<{len(values)}{code}", *values)


def _array(kind: Field, values: list[Any]) -> bytes:
    import numpy as np

    return npy.encode(np.array(values, dtype=kind.dtype).reshape(len(values), *kind.fixed_shape))


def _dump(arrays: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, data in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                member.write(data)
    return out.getvalue()


class SampleTable:
    """Reads a shard's table; columns are read when first asked for; thread-safe, opened anew in every process."""

    def __init__(self, path: Path, schema: Schema, num_samples: int) -> None:
        """Opens the table of a shard of `num_samples` samples.

        Raises:
            CorruptRecordError: the file is no such table.
            StorageError: it cannot be read.
        """
        self.path = path
        self._schema = schema
        self._num_samples = num_samples
        self._file = PositionalFile(path)
        self._arrays: dict[str, np.ndarray[Any, Any]] = {}
        try:
            self._members = read_directory(self._file)
        except BaseException:
            self._file.close()
            raise

    @property
    def crcs(self) -> np.ndarray[Any, Any]:
        """The checksums of all samples, uint32 of shape (n,)."""
        return self._column("crc32c")

    @property
    def num_bytes(self) -> np.ndarray[Any, Any]:
        """The sizes of all samples in bytes, int64 of shape (n,)."""
        return self._column("num_bytes")

    def field(self, name: str) -> np.ndarray[Any, Any]:
        """Returns the values of a small field of numbers, of its dtype and shape (n, *shape), read-only.

        Raises:
            CorruptRecordError: the table lacks them, or they are not what the schema demands.
        """
        return self._column(f"field_{name}")

    def _column(self, name: str) -> np.ndarray[Any, Any]:
        if name not in self._arrays:
            self._arrays[name] = self._read(name)
        return self._arrays[name]

    def _read(self, name: str) -> np.ndarray[Any, Any]:
        import numpy as np

        member = f"{name}.npy"
        if member not in self._members:
            raise CorruptRecordError(self.path, f"the column {name!r} is missing: restore the file")
        data = read_member(self._file, member, self._members[member])
        try:
            found = npy.view(data)
            expected = ((found.size,), np.dtype("uint8")) if name == "key_bytes" else self._expected(name)
            if (found.shape, found.dtype) != expected or not found.flags.c_contiguous:
                wanted = f"{expected[1]}{list(expected[0])}, row by row"
                raise ValueError(f"{found.dtype}{list(found.shape)}, expected {wanted}")
            return found
        except ValueError as error:
            raise CorruptRecordError(self.path, f"the column {name!r} is damaged: {error}: restore it") from error

    def _expected(self, name: str) -> tuple[tuple[int, ...], np.dtype[Any]]:
        import numpy as np

        n = self._num_samples
        if name == "key_offsets":
            return (n + 1,), np.dtype("int64")
        if name in _NUMBERS:
            return (n,), np.dtype(_NUMBERS[name])
        kind = self._schema[name.removeprefix("field_")]
        return (n, *kind.fixed_shape), np.dtype(kind.dtype)

    def key(self, index: int) -> str:
        """Returns the key of sample `index`."""
        return self.keys(index, index + 1)[0]

    def keys(self, start: int, stop: int) -> list[str]:
        """Returns the keys of samples `start` to `stop`, that one left out.

        Raises:
            CorruptRecordError: the keys are damaged.
        """
        offsets = self._column("key_offsets")[start : stop + 1].tolist()
        blob = self._column("key_bytes")
        if offsets != sorted(offsets) or offsets[0] < 0 or offsets[-1] > len(blob):
            raise CorruptRecordError(self.path, "the keys' offsets are not in order: restore the file", record=start)
        text = blob[offsets[0] : offsets[-1]].tobytes()
        bounds = pairwise(offset - offsets[0] for offset in offsets)
        return [text[low:high].decode(errors="replace") for low, high in bounds]

    def with_keys(self, keys: list[str]) -> bytes:
        """Returns the file of this table with other keys, one for each sample.

        Raises:
            CorruptRecordError: the table is damaged.
        """
        names = [*_NUMBERS, *(f"field_{name}" for name in columns(self._schema))]
        kept = {name: npy.encode(self._column(name)) for name in names}
        return _dump(_key_arrays([key.encode() for key in keys]) | kept)

    def close(self) -> None:
        """Closes the file; may be called twice."""
        self._file.close()
