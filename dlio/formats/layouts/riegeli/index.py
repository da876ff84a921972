"""Where the records of an ArrayRecord file are (array_record `cpp/{layout.proto,array_record_writer.cc}`).

The last 65536 bytes begin with a chunk of three equal postscripts. They lead to a chunk that was written after all
records: its first record is of the whole file, and each other one of a chunk of records. All have equally many records
but the last one, which may have fewer.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dlio.errors import CorruptRecordError, DataError
from dlio.formats.layouts.riegeli import BLOCK_BYTES
from dlio.formats.layouts.riegeli.chunks import Group, read_group
from dlio.formats.payloads import messages, wire
from dlio.io.random_access import Numbers, RandomAccessFile

_MAGIC = 0x71930E704FDAE05E
_FIELDS = 3  # of a chunk of records: its offset, bytes of all its records, records


@dataclass(frozen=True, slots=True)
class Index:
    """Where the records are.

    Attributes:
        num_records: how many there are.
        group_size: records of each chunk but the last one.
        chunks: offset of each chunk, bytes of its records, records, and where it ends most likely; int64 of shape
            (m, 4).
    """

    num_records: int
    group_size: int
    chunks: Numbers


def read_index(file: RandomAccessFile) -> Index:
    """Returns where the records of a file are.

    Raises:
        CorruptRecordError: it is no ArrayRecord file, or is damaged.
        MissingPackageError: protobuf, or the package for its compression, is not installed.
        StorageError: it cannot be read.
    """
    begin = file.num_bytes - BLOCK_BYTES
    if begin < 0:
        problem = f"expected {BLOCK_BYTES} bytes at least, found {file.num_bytes}: it is cut off, restore it"
        raise CorruptRecordError(file.path, problem)
    try:
        postscript = messages.parse("RiegeliPostscript", read_group(file, begin)[0])
        if postscript.magic != _MAGIC:
            raise ValueError(f"its postscript has the magic number {postscript.magic:x}, expected {_MAGIC:x}")
        begin = postscript.footer_offset
        return _parse(read_group(file, begin), begin)
    except (ValueError, IndexError) as error:
        if isinstance(error, DataError):
            raise
        problem = f"it has no index of ArrayRecord ({error}): restore the file"
        raise CorruptRecordError(file.path, problem, offset=begin) from error


def _parse(group: Group, begin: int) -> Index:
    """Returns the index that the records of the chunk at `begin` make."""
    whole = messages.parse("RiegeliFooterMetadata", group[0]).array_record_metadata
    if whole.version != 1:
        raise ValueError(f"version {whole.version}, expected 1")
    chunks = _parse_chunks(group)
    offsets, sizes, counts = chunks.T
    ends = np.append(offsets[1:], begin)
    if (offsets < 0).any() or (sizes < 0).any() or (counts < 1).any() or (counts > ends - offsets).any():
        raise ValueError("its chunks of records do not follow each other")
    group_size = int(counts[0]) if len(counts) else 1
    if (counts[:-1] != group_size).any() or (counts[-1:] > group_size).any():
        raise ValueError(f"its chunks do not all have {group_size} records")
    if (whole.num_chunks, whole.num_records) != (len(chunks), counts.sum()):
        found = f"{len(chunks)} chunks of {counts.sum()} records"
        raise ValueError(f"it lists {found}, expected {whole.num_chunks} of {whole.num_records}")
    likely = np.minimum(ends, offsets + 2 * sizes + BLOCK_BYTES)  # packed, they hardly take more than they have
    return Index(int(whole.num_records), group_size, np.column_stack([chunks, likely]))


def _parse_chunks(group: Group) -> Numbers:
    """Returns the fields of the messages after the first one; int64 of shape (m, 3)."""
    data = bytes(group.values[group.bounds[1] :])
    numbers = wire.parse_varints(data)
    if len(numbers) % 2:
        raise ValueError("a message has a number without value")
    tags, values = numbers.reshape(-1, 2).T
    lasts = np.flatnonzero(np.frombuffer(data, np.uint8) < 0x80)[::2]  # of each tag
    rows = np.searchsorted(group.bounds[2:] - group.bounds[1], lasts, side="right")
    if ((tags & 7 != 0) | (tags < 8) | (tags >= (_FIELDS + 1) * 8)).any():
        raise ValueError("a message has other fields than ArrayRecord's")
    chunks = np.zeros((len(group) - 1, _FIELDS), np.int64)
    chunks[rows, (tags >> 3) - 1] = values
    return chunks
