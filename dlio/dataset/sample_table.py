"""The table next to each shard: key, checksum and small numbers of every sample, whatever the format.

Containers keep a key only in their ecosystem's form, and most keep no checksum of a record. `STEM.samples.npz` keeps
both exactly, so that damage is found and named, and labels can be read without images. It is an uncompressed `.npz` of
numpy with these arrays for the shard's n samples, each compared with its CRC-32 when it is first read:

    key_bytes    uint8    the keys, UTF-8, one after the other
    key_offsets  int64    n + 1 positions in key_bytes
    crc32c       uint32   n checksums, as `dlio.dataset.checksum.crc32c` defines them; not in `unread_table`
    num_bytes    int64    n sizes: the bytes of all values, text as UTF-8, a number outside an array as 8
    field_NAME   dtype    n values of each field of numbers that takes up to 256 bytes a sample
    shape_NAME   int64    n shapes of each field of arrays whose shape varies; older tables lack it
"""

from __future__ import annotations

import io
import zipfile
from array import array
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dlio.dataset.checksum import crc32c, crc32c_of_group
from dlio.dataset.sample_group import Pieces, SampleGroup
from dlio.dataset.schema import Array, Field, Sample, Schema, Value
from dlio.dataset.shard import TABLE_SUFFIX, Part
from dlio.dataset.stored_zip import read_directory, read_member
from dlio.errors import CorruptRecordError, corrupt_errors
from dlio.formats.payloads import npy
from dlio.io.files import closed_on_error
from dlio.io.random_access import Numbers, RandomAccessFile

SUFFIX = TABLE_SUFFIX
_SHAPE = "shape_"
_OF_EVERY_TABLE = {"crc32c": Field("uint32"), "num_bytes": Field("int64")}
NUMBER_BYTES = 8  # counted for a number outside an array


def small_bytes(schema: Schema) -> int:
    """Returns what `num_bytes` counts for the fields that the table keeps."""
    return sum(kind.fixed_bytes if kind.shape else NUMBER_BYTES for kind in schema.small.values())


def _varying(schema: Schema) -> dict[str, Field]:
    """Returns the fields of arrays whose shape varies."""
    return {name: kind for name, kind in schema.items() if kind.is_number and not kind.is_fixed}


def _arrays(schema: Schema) -> dict[str, Field]:
    """Returns the type of a row of each array of a table, apart from the keys."""
    values = {f"field_{name}": kind for name, kind in schema.small.items()}
    shapes = {f"{_SHAPE}{name}": Field("int64", (len(kind.shape),)) for name, kind in _varying(schema).items()}
    return _OF_EVERY_TABLE | values | shapes


class SampleTableBuilder:
    """Collects the rows of one shard's table; used by one thread.

    Attributes:
        num_bytes: the size of the samples.
    """

    def __init__(self, schema: Schema) -> None:
        self.num_bytes = 0
        self._schema = schema
        self._keys, self._key_ends = bytearray(), array("q", [0])
        self._crcs, self._sizes = array("I"), array("q")  # uint32, int64
        self._values: dict[str, list[Value]] = {name: [] for name in schema.small}
        self._shapes: dict[str, list[tuple[int, ...]]] = {name: [] for name in _varying(schema)}
        fixed = [kind.fixed_bytes if kind.shape else NUMBER_BYTES for kind in schema.values() if kind.is_fixed]
        self._fixed_bytes, self._varying = sum(fixed), [name for name in schema if not schema[name].is_fixed]

    def __len__(self) -> int:
        return len(self._sizes)

    def append(self, sample: Sample) -> None:
        """Adds the row of a sample that `Schema.check` has returned."""
        self._keys += sample.key.encode()
        self._key_ends.append(len(self._keys))
        self._crcs.append(crc32c(sample, self._schema))
        num_bytes = self._fixed_bytes + sum(_size(sample.fields[name]) for name in self._varying)
        self._sizes.append(num_bytes)
        self.num_bytes += num_bytes
        for name, values in self._values.items():
            values.append(sample.fields[name])
        for name, shapes in self._shapes.items():
            shapes.append(sample.fields[name].shape)

    def extend(self, group: SampleGroup) -> None:
        """Adds the rows of a group that follows the schema."""
        self._key_ends.frombytes((group.keys.bounds[1:] - group.keys.bounds[0] + len(self._keys)).tobytes())
        self._keys += group.keys.joined()
        self._crcs.frombytes(crc32c_of_group(group).tobytes())
        sizes = [values.sizes if isinstance(values, Pieces) else NUMBER_BYTES for values in group.fields.values()]
        num_bytes = sum(sizes) + np.zeros(len(group), np.int64)
        self._sizes.frombytes(num_bytes.tobytes())
        self.num_bytes += int(num_bytes.sum())
        for name, values in self._values.items():  # numbers, never bytes
            values += group.numbers(name).tolist()

    def to_bytes(self) -> bytes:
        """Returns the table's file; equal rows give equal bytes."""
        rows: list[Sequence[Any]] = [self._crcs, self._sizes, *self._values.values(), *self._shapes.values()]
        arrays = {
            name: npy.encode(np.array(values, dtype=kind.dtype).reshape(len(values), *kind.fixed_shape))
            for (name, kind), values in zip(_arrays(self._schema).items(), rows, strict=True)
        }
        return _dump(_key_arrays(self._keys, np.frombuffer(self._key_ends, np.int64)) | arrays)


def _size(value: Any) -> int:
    """Returns the bytes of a value whose size varies."""
    if isinstance(value, bytes):
        return len(value)
    if isinstance(value, str):
        return len(value.encode())
    return sum(map(_size, value)) if isinstance(value, list) else int(value.nbytes)


def _key_arrays(keys: bytes | bytearray, offsets: Numbers) -> dict[str, bytes]:
    return {"key_bytes": npy.encode(np.frombuffer(keys, np.uint8)), "key_offsets": npy.encode(offsets)}


def _dump(arrays: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, data in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                member.write(data)
    return out.getvalue()


def unread_table(schema: Schema, keys: Pieces, large_bytes: Numbers, fields: Mapping[str, Array]) -> bytes:
    """Returns the file of a table of samples that nobody has read, so that it has no checksums.

    Args:
        schema: the fields; those that the table does not keep are one.
        keys: n keys in UTF-8.
        large_bytes: the size of each sample's value of that field, in bytes; int64 of shape (n,).
        fields: the values of the others, of shape (n, *shape).
    """
    rows = {f"field_{name}": npy.encode(fields[name].astype(kind.dtype)) for name, kind in schema.small.items()}
    own = _key_arrays(keys.joined(), keys.bounds - keys.bounds[0])
    return _dump(own | {"num_bytes": npy.encode(large_bytes + small_bytes(schema))} | rows)


class SampleTable:
    """Reads the rows of a shard's samples in its table, when they are first asked for.

    Thread-safe, opened again in every process.
    """

    def __init__(self, path: Path, schema: Schema, num_records: int, part: Part | None = None) -> None:
        """Opens the table of a shard whose files hold `num_records`, and whose samples are the `part` of them.

        Raises:
            CorruptRecordError: the file is not such a table.
            StorageError: it cannot be read.
        """
        self.path = path
        self._schema = schema
        self._num_records, self._part = num_records, part
        self._file = RandomAccessFile(path)
        self._arrays: dict[str, Array] = {}
        with closed_on_error(self._file):
            self._members = read_directory(self._file)

    @property
    def crcs(self) -> npt.NDArray[np.uint32]:
        """The checksums of all samples, uint32 of shape (n,)."""
        return self._array("crc32c")

    @property
    def num_bytes(self) -> Numbers:
        """The sizes of all samples in bytes, int64 of shape (n,)."""
        return self._array("num_bytes")

    def field(self, name: str) -> Array:
        """Returns the values of a small field of numbers, of its dtype and shape (n, *shape), read-only.

        Raises:
            CorruptRecordError: they are missing, damaged, or of another dtype or shape than the schema says.
        """
        return self._array(f"field_{name}")

    def shapes(self, name: str) -> Numbers | None:
        """Returns the shapes of a field of arrays whose shape varies, int64 of shape (n, dimensions), if it has them.

        Raises:
            CorruptRecordError: as `field`.
        """
        return self._array(_SHAPE + name) if _SHAPE + name in self._names() else None

    def _names(self) -> list[str]:
        """Returns the names of its arrays, apart from the keys."""
        return [each for each in _arrays(self._schema) if not each.startswith(_SHAPE) or f"{each}.npy" in self._members]

    def _array(self, name: str) -> Array:
        if name not in self._arrays:
            self._arrays[name] = self._read(name)
        return self._arrays[name]

    def _read(self, name: str) -> Array:
        member = f"{name}.npy"
        if member not in self._members:
            raise CorruptRecordError(self.path, f"the column {name!r} is missing: restore the file")
        data = read_member(self._file, member, self._members[member])
        with corrupt_errors(self.path, f"the column {name!r} is damaged: {{}}: restore it"):
            found = npy.view(data)
            shape, dtype = self._expected(name, found.size)
            if (found.shape, found.dtype) != (shape, dtype) or not found.flags.c_contiguous:
                raise ValueError(f"{found.dtype}{list(found.shape)}, expected {dtype}{list(shape)}, row by row")
            return found if self._part is None or name.startswith("key_") else found[self._part.records()]

    def _expected(self, name: str, key_bytes: int) -> tuple[tuple[int, ...], np.dtype[np.generic]]:
        """Returns the shape and dtype of an array."""
        if name == "key_bytes":
            return (key_bytes,), np.dtype("uint8")
        if name == "key_offsets":
            return (self._num_records + 1,), np.dtype("int64")
        kind = _arrays(self._schema)[name]
        return (self._num_records, *kind.fixed_shape), np.dtype(kind.dtype)

    def key(self, index: int) -> str:
        """Returns the key of sample `index`."""
        return self.keys(index, index + 1)[0]

    def keys(self, start: int, stop: int) -> list[str]:
        """Returns the keys of samples `start` to `stop` - 1.

        Raises:
            CorruptRecordError: the keys are damaged.
        """
        if self._part is not None:
            keys = self._keys(0, self._num_records)
            return [keys[record] for record in self._part.records()[start:stop].tolist()]
        return self._keys(start, stop)

    def _keys(self, start: int, stop: int) -> list[str]:
        """Returns the keys of records in the files."""
        offsets = self._array("key_offsets")[start : stop + 1].tolist()
        blob = self._array("key_bytes")
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
        kept = {name: npy.encode(self._array(name)) for name in self._names()}
        pieces = Pieces.of([key.encode() for key in keys])
        return _dump(_key_arrays(pieces.data, pieces.bounds) | kept)

    @staticmethod
    def joined(tables: Sequence[SampleTable], schema: Schema) -> bytes:
        """Returns the file of one table with the rows of several, in their order.

        Raises:
            CorruptRecordError: a table is damaged.
        """
        names = [name for name in _arrays(schema) if all(name in each._names() for each in tables)]
        kept = {name: npy.encode(np.concatenate([each._array(name) for each in tables])) for name in names}
        sizes = np.concatenate([np.diff(each._array("key_offsets")) for each in tables])
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])
        keys = b"".join([each._array("key_bytes").tobytes() for each in tables])
        return _dump(_key_arrays(keys, offsets) | kept)

    def close(self) -> None:
        """Closes the file; may be called twice."""
        self._file.close()
