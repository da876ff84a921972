"""Reading a chunk, whose bytes the headers of blocks interrupt, and its records; everything is checked by its hash.

zstd needs the package `zstandard`; brotli and snappy need the package `cramjam`.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache

import numpy as np

from dlio import native
from dlio.errors import CorruptRecordError, corrupt_errors, needs_package
from dlio.formats.layouts.riegeli import BLOCK_BYTES, HASH_KEY, HEADER_BYTES
from dlio.formats.payloads import wire
from dlio.io.random_access import Numbers, RandomAccessFile

#: Decompresses bytes, given how many they are; and what it raises for damage.
Decompress = tuple[Callable[[memoryview, int], bytes | memoryview], type[Exception]]

_BLOCK = struct.Struct("<QQQ")
_CHUNK = struct.Struct("<QQQQQ")
_ROOM = BLOCK_BYTES - HEADER_BYTES
_LEAST_LIMIT, _MOST_GROWTH = 64 << 20, 16  # as of Parquet's pages


@dataclass(frozen=True, slots=True)
class Group:
    """The records of a chunk.

    Attributes:
        values: one after the other.
        bounds: where each begins, and where the last one ends; int64 of shape (n + 1,).
    """

    values: bytes | memoryview
    bounds: Numbers

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def __getitem__(self, index: int) -> bytes:
        """Returns a record."""
        begin, end = self.bounds[index : index + 2].tolist()
        return bytes(self.values[begin:end])


def read_group(file: RandomAccessFile, begin: int, record: int | None = None, end: int = 0) -> Group:
    """Returns the records of the chunk at `begin`; errors name it and `record`.

    One that ends at `end` or before is read at once, else its header first.

    Raises:
        CorruptRecordError: there is no simple chunk, or it is damaged.
        MissingPackageError: it is compressed, and the package for it is not installed.
        StorageError: the file cannot be read.
    """
    chunk = _read_chunk(file, begin, record, end)
    if chunk.kind == "t":
        problem = "its records are transposed, which dlio does not read: write the file without the option 'transpose'"
        raise CorruptRecordError(file.path, problem, record=record, offset=begin)
    with corrupt_errors(file.path, "{}: restore the file", record=record, offset=begin):
        return _group(chunk, _most_bytes(file))


def _group(chunk: _Chunk, limit: int) -> Group:
    if chunk.kind != "r":
        raise ValueError(f"expected a chunk of records (r), found one of the kind {chunk.kind!r}")
    method = chr(chunk.data[0]) if chunk.data else ""
    sizes_bytes, begin = _read_varint(chunk.data, 1)
    packed_sizes, packed = chunk.data[begin : begin + sizes_bytes], chunk.data[begin + sizes_bytes :]
    sizes = _unpack(method, packed_sizes, min(limit, wire.MAX_VARINT_BYTES * chunk.num_records))
    bounds = _bounds(bytes(sizes), chunk)
    values = _unpack(method, packed, chunk.num_bytes)
    if len(values) != chunk.num_bytes:
        raise ValueError(f"the chunk has {len(values)} bytes of records, expected {chunk.num_bytes}")
    return Group(values, bounds)


def _bounds(sizes: bytes, chunk: _Chunk) -> Numbers:
    if chunk.num_records == 1 and sizes == wire.varint(chunk.num_bytes):  # most files' groups, in a tenth of the time
        return np.array([0, chunk.num_bytes])
    numbers = wire.parse_varints(sizes)
    bounds = np.zeros(len(numbers) + 1, np.int64)
    if len(numbers) == chunk.num_records and not ((numbers < 0) | (numbers > chunk.num_bytes)).any():
        bounds[1:] = np.cumsum(numbers)
        if bounds[-1] == chunk.num_bytes:
            return bounds
    raise ValueError(f"the sizes are not of {chunk.num_records} records of {chunk.num_bytes} bytes")


def _read_varint(data: memoryview, begin: int) -> tuple[int, int]:
    """Returns a number, and where the next begins."""
    number = 0
    for place, byte in enumerate(data[begin : begin + wire.MAX_VARINT_BYTES]):
        number |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return number, begin + place + 1
    raise ValueError("a chunk's data ends within a number, or has one of more than 10 bytes")


def _unpack(method: str, packed: memoryview, max_bytes: int) -> bytes | memoryview:
    """Returns what is packed; raises ValueError for damage, and for more than `max_bytes`."""
    if method == "\0":
        return packed
    if method not in _DECOMPRESS:
        raise ValueError(f"a chunk is compressed by {method!r}, which no version of Riegeli knows")
    size, begin = _read_varint(packed, 0)
    if size > max_bytes:
        raise ValueError(f"a chunk's compressed part claims {size} bytes, expected {max_bytes} at most")
    decompress, damage = _DECOMPRESS[method]()
    try:
        content = decompress(packed[begin:], size) if size else b""
    except damage as error:
        raise ValueError(f"a chunk's compressed part is damaged: {error}") from None
    if len(content) != size:
        raise ValueError(f"a chunk's compressed part has {len(content)} bytes, expected {size}")
    return content


@cache
def _zstd() -> Decompress:
    with needs_package("zstandard", "arrayrecord", "an ArrayRecord file compressed by zstd"):
        import zstandard
    kept = threading.local()  # an engine is of one thread; a new one takes longer than 100 KB do

    def decompress(data: memoryview, size: int) -> bytes:
        if zstandard.frame_content_size(data) > size:
            raise ValueError("a chunk's compressed part is of more bytes than it claims")
        if not hasattr(kept, "engine"):
            kept.engine = zstandard.ZstdDecompressor()
        return bytes(kept.engine.decompress(data, max_output_size=size))

    return decompress, zstandard.ZstdError


@cache
def _cramjam(method: str) -> Decompress:
    with needs_package("cramjam", "arrayrecord", f"an ArrayRecord file compressed by {method}"):
        import cramjam
    decompress_into = cramjam.brotli.decompress_into if method == "brotli" else cramjam.snappy.decompress_raw_into

    def decompress(data: memoryview, size: int) -> memoryview:
        out = bytearray(size)
        return memoryview(out)[: decompress_into(data, out)]

    return decompress, cramjam.DecompressionError


_DECOMPRESS: dict[str, Callable[[], Decompress]] = {
    "z": _zstd,
    "b": lambda: _cramjam("brotli"),
    "s": lambda: _cramjam("snappy"),
}


@dataclass(frozen=True, slots=True)
class _Chunk:
    """A chunk.

    Attributes:
        kind: one character.
        num_records: how many it has.
        num_bytes: of all its records; no more than `_most_bytes` of its file.
        data: what follows its header.
    """

    kind: str
    num_records: int
    num_bytes: int
    data: memoryview


def _most_bytes(file: RandomAccessFile) -> int:
    """Returns how many bytes a chunk of a file may unpack to."""
    return max(_LEAST_LIMIT, _MOST_GROWTH * file.num_bytes)


def _read_chunk(file: RandomAccessFile, begin: int, record: int | None = None, end: int = 0) -> _Chunk:
    """Returns the chunk at `begin`; arguments and errors are those of `read_group`."""
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
    return _Chunk(chr(kind & 0xFF), num_records, num_bytes, data)


def _sizes(raw: bytes, begin: int, file: RandomAccessFile) -> tuple[int, int]:
    """Returns a chunk's bytes of data, and how many records it has: as many as the file may hold."""
    header = b"".join(raw[first:last] for first, last in _between_headers(begin, _skip(begin, _CHUNK.size)))
    expected, size, _, kind, num_bytes = _CHUNK.unpack(header)
    _check(memoryview(header)[8:], expected, "chunk's header")
    num_records = kind >> 8
    if size > file.num_bytes or num_records > file.num_bytes - begin or num_bytes > _most_bytes(file):
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
