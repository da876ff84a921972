"""ArrayRecord files of up to 64 KB of records, without compression, with any wrong value in their headers and index."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from dlio import native
from dlio.formats.layouts.riegeli import BLOCK_BYTES, HASH_KEY
from dlio.formats.payloads.wire import varint

FIRST = 64  # the offset of the first chunk


def hashed(data: bytes) -> bytes:
    """Returns data after its hash."""
    return struct.pack("<Q", native.highway_hash(data, HASH_KEY)) + data


def packed(records: Sequence[bytes]) -> bytes:
    """Returns the data of a simple chunk."""
    sizes = b"".join(varint(len(each)) for each in records)
    return b"\0" + varint(len(sizes)) + sizes + b"".join(records)


@dataclass(frozen=True)
class Chunk:
    """A chunk; what its header says."""

    data: bytes
    num_records: int
    num_bytes: int
    kind: bytes = b"r"
    size: int | None = None

    @classmethod
    def of(cls, records: Sequence[bytes]) -> Chunk:
        """Returns a chunk of records."""
        return cls(packed(records), len(records), sum(map(len, records)))

    def pack(self) -> bytes:
        """Returns the bytes of the chunk."""
        size = len(self.data) if self.size is None else self.size
        end = struct.pack("<QQ", self.kind[0] | self.num_records << 8, self.num_bytes)
        return hashed(struct.pack("<Q", size) + hashed(self.data)[:8] + end) + self.data


def message(*values: int) -> bytes:
    """Returns a message with the fields 1, 2, ..."""
    return b"".join(varint(number << 3) + varint(value) for number, value in enumerate(values, 1))


@dataclass(frozen=True)
class File:
    """A file; its index is what its chunks make it, except for what is given."""

    chunks: Sequence[Chunk]
    listed: dict[int, tuple[int, int, int]] = field(default_factory=dict)  # number of a chunk: offset, bytes, records
    whole: tuple[int, int, int] | None = None  # version, chunks, records
    footer_offset: int | None = None
    magic: int = 0x71930E704FDAE05E

    def pack(self) -> bytes:
        """Returns the bytes of the file."""
        data, entries = bytearray(FIRST), []
        for number, chunk in enumerate(self.chunks):
            entries.append(self.listed.get(number, (len(data), chunk.num_bytes, chunk.num_records)))
            data += chunk.pack()
        footer_offset = len(data) if self.footer_offset is None else self.footer_offset
        whole = message(*(self.whole or (1, len(self.chunks), sum(chunk.num_records for chunk in self.chunks))))
        footer = [b"\x0a" + varint(len(whole)) + whole, *(message(*entry) for entry in entries)]
        data += Chunk.of(footer).pack()
        data[:FIRST] = hashed(struct.pack("<QQ", 0, FIRST)) + replace(Chunk.of([]), kind=b"s", data=b"").pack()
        postscript = Chunk.of([message(footer_offset, self.magic)] * 3).pack()
        data += bytes(BLOCK_BYTES - len(data))
        block = hashed(struct.pack("<QQ", 0, 24 + len(postscript)))
        return bytes(data) + (block + postscript).ljust(BLOCK_BYTES, b"\0")
