"""Reading a chunk, whose bytes the headers of blocks interrupt; everything is checked by its hash."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from dlio import native
from dlio.errors import corrupt_errors
from dlio.formats.layouts.riegeli import BLOCK_BYTES, HASH_KEY, HEADER_BYTES
from dlio.io.random_access import RandomAccessFile

_BLOCK = struct.Struct("<QQQ")
_CHUNK = struct.Struct("<QQQQQ")
_ROOM = BLOCK_BYTES - HEADER_BYTES
_LEAST_LIMIT, _MOST_GROWTH = 64 << 20, 16  # as of Parquet's pages


@dataclass(frozen=True, slots=True)
class Chunk:
    """A chunk.

    Attributes:
        kind: one character.
        num_records: how many it has.
        num_bytes: of all its records; no more than `most_bytes` of its file.
        data: what follows its header.
    """

    kind: str
    num_records: int
    num_bytes: int
    data: memoryview


def most_bytes(file: RandomAccessFile) -> int:
    """Returns how many bytes a chunk of a file may unpack to."""
    return max(_LEAST_LIMIT, _MOST_GROWTH * file.num_bytes)


def read_chunk(file: RandomAccessFile, begin: int, record: int | None = None, end: int = 0) -> Chunk:
    """Returns the chunk at `begin`; errors name it and `record`.

    One that ends at `end` or before is read at once, else its header first.

    Raises:
        CorruptRecordError: there is none, or it is damaged.
        StorageError: the file cannot be read.
    """
    with corrupt_errors(file.path, "{}: restore the file", record=record, offset=begin):
        if begin < 0 or 0 < begin % BLOCK_BYTES <= HEADER_BYTES:
            raise ValueError("a chunk cannot begin here")
        raw = file.read(begin, max(_skip(begin, _CHUNK.size), end) - begin, record)
        size, num_records = _sizes(raw, begin, file)
        num_bytes = _skip(begin, _CHUNK.size + size) - begin
        raw = raw[:num_bytes] if num_bytes <= len(raw) else file.read(begin, num_bytes, record)
        content = _content(raw, begin, max(begin + num_bytes, _next_place(begin + num_records)))
        _, _, data_hash, kind, num_bytes = _CHUNK.unpack_from(content)
        data = content[_CHUNK.size :]
        _check(data, data_hash, "data")
    return Chunk(chr(kind & 0xFF), num_records, num_bytes, data)


def _sizes(raw: bytes, begin: int, file: RandomAccessFile) -> tuple[int, int]:
    """Returns a chunk's bytes of data, and how many records it has: as many as the file may hold."""
    header = b"".join(raw[first:last] for first, last in _between_headers(begin, _skip(begin, _CHUNK.size)))
    expected, size, _, kind, num_bytes = _CHUNK.unpack(header)
    _check(memoryview(header)[8:], expected, "chunk's header")
    num_records = kind >> 8
    if size > file.num_bytes or num_records > file.num_bytes - begin or num_bytes > most_bytes(file):
        problem = f"a chunk of {size} bytes claims {num_records} records of {num_bytes} bytes"
        raise ValueError(f"{problem}, more than a file of {file.num_bytes} bytes has")
    return size, num_records


def _skip(begin: int, num_bytes: int) -> int:
    """Returns where `num_bytes` of a chunk that begins at `begin` end."""
    return begin + num_bytes + (num_bytes + (begin + _ROOM - 1) % BLOCK_BYTES) // _ROOM * HEADER_BYTES


def _next_place(position: int) -> int:
    """Returns where a chunk can begin, from a position on."""
    return position + max(0, -position % BLOCK_BYTES - _ROOM + 1)


def _between_headers(begin: int, end: int) -> Iterator[tuple[int, int]]:
    """Yields the parts of bytes from `begin` to `end` that no block's header takes, as offsets from `begin`."""
    for block in range(begin - begin % BLOCK_BYTES, end, BLOCK_BYTES):
        yield max(0, block + HEADER_BYTES - begin), min(block + BLOCK_BYTES, end) - begin


def _content(raw: bytes, begin: int, end: int) -> memoryview:
    """Returns the bytes of the chunk from `begin` to `end`, without the headers of blocks, which are checked."""
    first_block = begin + -begin % BLOCK_BYTES
    for block in range(first_block, begin + len(raw), BLOCK_BYTES):
        header = raw[block - begin : block - begin + HEADER_BYTES]
        expected, before, after = _BLOCK.unpack(header)
        _check(header[8:], expected, f"header of the block at {block}")
        if (before, after) != (block - begin, end - block):
            problem = f"the header of the block at {block} is of a chunk from {block - before} to {block + after}"
            raise ValueError(f"{problem}, expected {begin} to {end}")
    view = memoryview(raw)
    if first_block >= begin + len(raw):
        return view
    return memoryview(b"".join(view[first:last] for first, last in _between_headers(begin, begin + len(raw))))


def _check(data: bytes | memoryview, expected: int, what: str) -> None:
    found = native.highway_hash(data, HASH_KEY)
    if found != expected:
        raise ValueError(f"the {what} has the hash {found:016x}, expected {expected:016x}")
