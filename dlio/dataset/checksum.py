"""The checksum of a sample's values, the same in every format."""

from __future__ import annotations

import struct

import numpy as np
from numpy.typing import NDArray

from dlio.dataset.sample_group import Pieces, SampleGroup
from dlio.dataset.schema import Sample, Schema
from dlio.native import crc32c as extend_crc

_COPIED_BYTES = 4 << 10  # numbers up to here are copied to those before them; a call takes longer
_INT64, _UINT64 = struct.Struct("<q"), struct.Struct("<Q")


def crc32c(sample: Sample, schema: Schema) -> int:
    """Returns the CRC-32C of a sample's values, uint32, the same in every format.

    The checksum runs over the fields in the schema's order: bytes unchanged, text as UTF-8, numbers as the
    little-endian bytes of their dtype, entries of a list one after another. Then follow, as little-endian uint64, what
    the values alone do not define: the sizes of bytes and texts, the lengths of lists, the shapes that vary.
    """
    crc = 0
    numbers = b""  # not added yet, since a call takes longer than some bytes more
    sizes: list[int] = []
    for name, kind in schema.fields:
        value = sample.fields[name]
        if type(value) is bytes:
            crc = extend_crc(value, extend_crc(numbers, crc) if numbers else crc)
            numbers = b""
            sizes.append(len(value))
            continue
        if type(value) is int and kind.dtype == "int64":
            numbers += _INT64.pack(value)
            continue
        if kind.is_number:
            array = np.ascontiguousarray(value, kind.stored_dtype)
            if array.nbytes > _COPIED_BYTES:
                crc = extend_crc(array.data, extend_crc(numbers, crc) if numbers else crc)
                numbers = b""
            else:
                numbers += array.tobytes()
            sizes += value.shape if None in kind.shape else ()
            continue
        sizes += () if kind.is_scalar else (len(value),)
        for item in [value] if kind.is_scalar else value:
            data = item if kind.dtype == "bytes" else item.encode()
            crc = extend_crc(data, extend_crc(numbers, crc) if numbers else crc)
            numbers = b""
            sizes.append(len(data))
    if sizes:
        numbers += _UINT64.pack(*sizes) if len(sizes) == 1 else struct.pack(f"<{len(sizes)}Q", *sizes)
    return extend_crc(numbers, crc)


def crc32c_of_group(group: SampleGroup) -> NDArray[np.uint32]:
    """Returns `crc32c` of each sample of a group that follows its schema, uint32 of shape (n,)."""
    crcs, sizes = np.zeros(len(group), np.uint32), []
    for values in group.fields.values():
        if isinstance(values, Pieces):
            values.extend(crcs)
            sizes.append(values.sizes)
        else:
            Pieces.rows(values.astype("<i8")).extend(crcs)
    for column in sizes:
        Pieces.rows(column.astype("<u8")).extend(crcs)
    return crcs
