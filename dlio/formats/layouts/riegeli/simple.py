"""The records of a simple chunk.

zstd needs the package `zstandard`; brotli and snappy need the package `cramjam`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np

from dlio.errors import CorruptRecordError, corrupt_errors, needs_package
from dlio.formats.layouts.riegeli.blocks import Chunk, most_bytes, read_chunk
from dlio.formats.payloads import wire
from dlio.io.random_access import Numbers, RandomAccessFile

#: Decompresses bytes, given how many they are; and what it raises for damage.
Decompress = tuple[Callable[[memoryview, int], bytes | memoryview], type[Exception]]


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
    """Returns the records of the chunk at `begin`; see `read_chunk`.

    Raises:
        CorruptRecordError: there is no simple chunk, or it is damaged.
        MissingPackageError: it is compressed, and the package for it is not installed.
        StorageError: the file cannot be read.
    """
    chunk = read_chunk(file, begin, record, end)
    if chunk.kind == "t":
        problem = "its records are transposed, which dlio does not read: write the file without the option 'transpose'"
        raise CorruptRecordError(file.path, problem, record=record, offset=begin)
    with corrupt_errors(file.path, "{}: restore the file", record=record, offset=begin):
        return _group(chunk, most_bytes(file))


def _group(chunk: Chunk, limit: int) -> Group:
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


def _bounds(sizes: bytes, chunk: Chunk) -> Numbers:
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
