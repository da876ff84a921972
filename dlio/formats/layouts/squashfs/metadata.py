"""The superblock, and the metadata blocks that all tables consist of.

A table's records are cut every 8192 bytes. Each piece is a metadata block: u16 header, then bytes. Bits 0 to 14 of the
header are the size on disk; bit 15 means uncompressed. Only the last block of a table holds less than 8192 bytes. A
place in a table is given by the position of a block, relative to the table, and an offset in its uncompressed bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import astuple, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dlio.io.random_access import Numbers

#: Returns the content of a compressed block, at most this many bytes; raises ValueError.
Decompress = Callable[[bytes, int], bytes]

METADATA_BYTES = 8192
HEADER_BYTES = 2
SUPERBLOCK_BYTES = 96
NO_TABLE = 2**64 - 1
MAGIC = b"hsqs"
_SUPERBLOCK = struct.Struct("<4s4I6H8Q")
_STORED_BLOCK = 0x8000
_FREE_BYTES = 64 << 20  # of tables in memory, whatever the size of the image
_MAX_RATIO = 32  # tables of real images are compressed to a tenth at most
_GATHERED = 1 << 16  # records at a time, so that their indices take little memory


@dataclass(frozen=True, slots=True)
class Superblock:
    """The superblock, without its magic number; field by field as on the disk."""

    inodes: int
    made_seconds: int
    block_bytes: int
    fragments: int
    compressor: int
    block_log: int
    flags: int
    ids: int
    major: int
    minor: int
    root: int
    num_bytes: int
    id_list: int
    xattrs: int
    inode_table: int
    directory_table: int
    fragment_list: int
    export_list: int

    def to_bytes(self) -> bytes:
        """Returns its 96 bytes."""
        return _SUPERBLOCK.pack(MAGIC, *astuple(self))

    @classmethod
    def parse(cls, data: bytes, file_bytes: int) -> Superblock:
        """Returns the superblock of an image of `file_bytes`.

        Raises:
            ValueError: it is not one, or contradicts itself or the size of the file.
        """
        if len(data) < SUPERBLOCK_BYTES or data[:4] != MAGIC:
            raise ValueError("it does not begin as a SquashFS image does: it is another kind of file, or incomplete")
        found = cls(*_SUPERBLOCK.unpack(data[:SUPERBLOCK_BYTES])[1:])
        if (found.major, found.minor) != (4, 0):
            raise ValueError(f"its SquashFS version is {found.major}.{found.minor}: expected 4.0")
        if not 12 <= found.block_log <= 20 or found.block_bytes != 1 << found.block_log:
            raise ValueError(f"its blocks have {found.block_bytes} bytes: expected a power of 2 from 4096 to 1 MiB")
        tables = SUPERBLOCK_BYTES, found.inode_table, found.directory_table, found.id_list, found.num_bytes, file_bytes
        if list(tables) != sorted(tables):
            raise ValueError(f"its tables do not follow each other within {file_bytes} bytes: it is cut off")
        return found


def stored(stream: bytes | bytearray) -> bytes:
    """Returns the metadata blocks of a table, which are not compressed."""
    full, rest = divmod(len(stream), METADATA_BYTES)
    blocks = np.empty((full, HEADER_BYTES + METADATA_BYTES), np.uint8)
    blocks[:, :HEADER_BYTES] = list(struct.pack("<H", _STORED_BLOCK | METADATA_BYTES))
    blocks[:, HEADER_BYTES:] = np.frombuffer(stream, np.uint8, full * METADATA_BYTES).reshape(full, METADATA_BYTES)
    last = struct.pack("<H", _STORED_BLOCK | rest) + stream[full * METADATA_BYTES :] if rest else b""
    return blocks.tobytes() + last


def stored_position(offset: Any) -> Any:
    """Returns where the metadata block with byte `offset` of a stored table is, relative to the table."""
    return offset // METADATA_BYTES * (HEADER_BYTES + METADATA_BYTES)


@dataclass(frozen=True, slots=True)
class Table:
    """The records of a table.

    Attributes:
        stream: all its bytes.
        positions: where its blocks are on disk, relative to the table, increasing; int64.
    """

    stream: bytes
    positions: Numbers

    @classmethod
    def parse(cls, data: bytes, decompress: Decompress, file_bytes: int) -> Table:
        """Returns the table whose metadata blocks are `data`, of an image of `file_bytes`.

        Raises:
            ValueError: a block is damaged, or the table is too large for the image.
        """
        if (stream := _all_stored(data)) is not None:
            return cls(stream, np.arange(0, len(data), HEADER_BYTES + METADATA_BYTES))
        room = _FREE_BYTES + _MAX_RATIO * file_bytes
        pieces: list[bytes] = []
        positions, at = [], 0
        while at < len(data):
            if len(pieces) * METADATA_BYTES > room:
                raise ValueError(f"its tables take more than {room} bytes: it is damaged")
            if pieces and len(pieces[-1]) != METADATA_BYTES:
                raise ValueError(f"a metadata block of {len(pieces[-1])} bytes is not the last of its table")
            word = int.from_bytes(data[at : at + HEADER_BYTES], "little")
            piece = data[at + HEADER_BYTES : at + HEADER_BYTES + word % _STORED_BLOCK]
            if not piece or len(piece) < word % _STORED_BLOCK or len(piece) > METADATA_BYTES:
                raise ValueError(f"a metadata block of {word % _STORED_BLOCK} bytes is not within its table")
            positions.append(at)
            pieces.append(piece if word & _STORED_BLOCK else decompress(piece, METADATA_BYTES))
            at += HEADER_BYTES + len(piece)
        return cls(b"".join(pieces), np.array(positions, np.int64))

    def offsets(self, blocks: Numbers, within: Numbers) -> Numbers:
        """Returns offsets in the stream for places given by block and offset within it.

        Raises:
            ValueError: a place is outside of the table.
        """
        numbers = np.searchsorted(self.positions, blocks)
        known = numbers < len(self.positions)
        known[known] = self.positions[numbers[known]] == blocks[known]
        found = numbers * METADATA_BYTES + within
        if not (known & (within < METADATA_BYTES) & (found < len(self.stream))).all():
            raise ValueError("a reference points outside its table")
        return found

    def gather(self, offsets: Numbers, dtype: Any) -> NDArray[Any]:
        """Returns the records of one dtype that begin at `offsets`.

        Raises:
            ValueError: one is not within the table.
        """
        return gather(np.frombuffer(self.stream, np.uint8), offsets, dtype)


def _all_stored(data: bytes) -> bytes | None:
    """Returns the records of a table whose blocks are all stored, None if some are compressed."""
    full, rest = divmod(len(data), HEADER_BYTES + METADATA_BYTES)
    if not full:
        return None
    blocks = np.frombuffer(data, np.uint8, len(data) - rest).reshape(full, -1)
    words = blocks[:, :HEADER_BYTES] == list(struct.pack("<H", _STORED_BLOCK | METADATA_BYTES))
    last = struct.pack("<H", _STORED_BLOCK | rest - HEADER_BYTES) if rest > HEADER_BYTES else b""
    end = len(data) - rest
    if not words.all() or data[end : end + HEADER_BYTES] != last:
        return None
    return b"".join([blocks[:, HEADER_BYTES:].tobytes(), memoryview(data)[end + HEADER_BYTES :]])


def gather(stream: NDArray[np.uint8], offsets: Numbers, dtype: Any) -> NDArray[Any]:
    """Returns the records of one dtype that begin at `offsets`; raises ValueError if one is not within the stream."""
    kind = np.dtype(dtype)
    if len(offsets) and not 0 <= offsets.min() <= offsets.max() <= len(stream) - kind.itemsize:
        raise ValueError("a record extends beyond its table")
    found = np.empty(len(offsets), kind)
    rows, columns = found.view(np.uint8).reshape(len(offsets), kind.itemsize), np.arange(kind.itemsize)
    for begin in range(0, len(offsets), _GATHERED):
        rows[begin : begin + _GATHERED] = stream[offsets[begin : begin + _GATHERED, None] + columns]
    return found
