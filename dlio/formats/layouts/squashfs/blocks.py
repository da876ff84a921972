"""Opening an image, and reading its files: uncompressed, from compressed blocks, or from blocks shared with others.

    compressor   1 gzip: a zlib stream   4 xz   5 lz4: a bare block   6 zstd

gzip and xz are of the standard library; zstd needs the package `zstandard`, lz4 the package `lz4`. The compressors
lzma (2) and lzo (3) are refused. A block of size 0 on disk is one of zeros.
"""

from __future__ import annotations

import lzma
import zlib
from collections.abc import Callable
from functools import lru_cache, partial
from itertools import pairwise
from pathlib import Path

import numpy as np

from dlio import native
from dlio.errors import CorruptRecordError, corrupt_errors, needs_package
from dlio.formats.layouts.squashfs import STORED
from dlio.formats.layouts.squashfs.metadata import NO_TABLE, SUPERBLOCK_BYTES, Decompress, Superblock, Table
from dlio.formats.layouts.squashfs.tree import Files, read_files
from dlio.io.random_access import Numbers, RandomAccessFile

_CACHED_BYTES = 8 << 20  # of fragment blocks: neighbours share them
_XZ_BYTES = 64 << 20  # of memory to decompress; dictionaries are no larger than a block
_FRAGMENT_BYTES = 16
#: Returns the content of a block, None if it is not whole; and what it raises for damage.
_Engine = tuple[Callable[[bytes, int], bytes | None], type[Exception]]


class Image:
    """The files of an image; safe for several threads.

    Attributes:
        file: the image.
        files: its files.
    """

    def __init__(self, file: RandomAccessFile) -> None:
        """Reads the tables of the image.

        Raises:
            CorruptRecordError: it is damaged, or compressed in a way that dlio does not read.
            MissingPackageError: it is compressed by zstd or lz4, whose package is not installed.
            StorageError: it cannot be read.
        """
        self.file = file
        with corrupt_errors(file.path, "{}: restore the image"):
            self._superblock = Superblock.parse(file.read(0, min(SUPERBLOCK_BYTES, file.num_bytes)), file.num_bytes)
            self._decompress = _decompressor(self._superblock.compressor, file.path)
            self.files = self._read_files()
        count = max(1, _CACHED_BYTES // self._superblock.block_bytes)
        self._fragment = lru_cache(count)(partial(_read_block, file, self._decompress, self._superblock.block_bytes))

    def _read_files(self) -> Files:
        block = self._superblock
        lists = [(block.fragments, block.fragment_list), (block.inodes, block.export_list), (block.ids, block.id_list)]
        firsts = [self._first_block(position) for count, position in lists if count and position < block.num_bytes]
        ends = [position for position in firsts if block.directory_table <= position]
        if not ends:
            raise ValueError("it has no table of owners")
        bounds = block.inode_table, block.directory_table, min(ends)
        inodes, listings = (self._table(*pair) for pair in pairwise(bounds))
        return read_files(block, inodes, listings, self._read_fragments())

    @property
    def left_out(self) -> str:
        """What the image holds other than files and folders, as text; '' for nothing."""
        found = [f"{count} {kind}" for kind, count in sorted(self.files.left_out.items())]
        return ", ".join(found + ["extended attributes"] * (self._superblock.xattrs != NO_TABLE))

    def _first_block(self, position: int) -> int:
        return int.from_bytes(self.file.read(position, 8), "little")

    def _table(self, begin: int, end: int) -> Table:
        if not begin <= end <= self.file.num_bytes:
            raise ValueError(f"a table from {begin} to {end} is not within the image")
        return Table.parse(self.file.read(begin, end - begin), self._decompress, self.file.num_bytes)

    def _read_fragments(self) -> Numbers:
        """Returns start and size word of each fragment block, int64 of shape (m, 2)."""
        count, position = self._superblock.fragments, self._superblock.fragment_list
        if not count:
            return np.zeros((0, 2), np.int64)
        if count > self.file.num_bytes:
            raise ValueError(f"it has {count} fragment blocks, more than bytes")
        stream = self._table(self._first_block(position), position).stream
        rows = np.frombuffer(stream, "<i8", count * _FRAGMENT_BYTES // 8).reshape(count, 2)
        found = np.stack([rows[:, 0], rows[:, 1] & 0xFFFFFFFF], axis=1)
        starts, words = found.T
        ends = starts + (words & STORED - 1)
        wrong = (starts < SUPERBLOCK_BYTES) | (ends > self._superblock.inode_table) | (words >= STORED << 1)
        wrong |= words & STORED - 1 > self._superblock.block_bytes
        if wrong.any():
            raise ValueError(f"fragment block {np.flatnonzero(wrong)[0]} lies outside of the image's data")
        return found

    def read(self, index: int, record: int | None) -> bytes:
        """Returns the content of a file; errors name `record` and the file's inode.

        Raises:
            CorruptRecordError: a block is damaged.
            StorageError: it cannot be read.
        """
        files = self.files
        start, size = int(files.start[index]), int(files.size[index])
        if files.is_stored[index]:
            return self.file.read(start, size, record)
        try:
            return self._joined(index, start, size)
        except ValueError as error:
            problem = f"inode {files.number[index]}: {getattr(error, 'problem', error)}: restore the image"
            raise CorruptRecordError(self.file.path, problem, record=record, offset=start) from error

    def _joined(self, index: int, start: int, size: int) -> bytes:
        files, block_bytes = self.files, self._superblock.block_bytes
        pieces, at = [], start
        for number, word in enumerate(files.words(index)):
            wanted = min(block_bytes, size - number * block_bytes)
            pieces.append(_read_block(self.file, self._decompress, wanted, at, word) if word else bytes(wanted))
            if len(pieces[-1]) != wanted:
                raise ValueError(f"its block {number} has {len(pieces[-1])} bytes, expected {wanted}")
            at += word & STORED - 1
        if files.fragment[index] >= 0 and size % block_bytes:
            offset = int(files.offset[index])
            shared = self._fragment(*files.fragments[files.fragment[index]].tolist())
            pieces.append(shared[offset : offset + size % block_bytes])
            if len(pieces[-1]) != size % block_bytes:
                raise ValueError(f"its fragment block has {len(shared)} bytes, expected more")
        return b"".join(pieces)


def _read_block(file: RandomAccessFile, decompress: Decompress, max_bytes: int, at: int, word: int) -> bytes:
    """Returns the content of the block at `at` with this size word, at most `max_bytes` of it."""
    data = file.read(at, word & STORED - 1)
    return data if word & STORED else decompress(data, max_bytes)


def _decompressor(compressor: int, path: Path) -> Decompress:
    """Returns the function that decompresses a block; raises CorruptRecordError for one that dlio does not know."""
    if compressor not in _ENGINES:
        name = {2: "lzma", 3: "lzo"}.get(compressor, f"number {compressor}")
        problem = f"it is compressed by {name}, which dlio does not read: create it again with mksquashfs -comp zstd"
        raise CorruptRecordError(path, problem)
    engine, damage = _ENGINES[compressor]()

    def decompress(data: bytes, max_bytes: int) -> bytes:
        try:
            content = engine(data, max_bytes)
        except damage as error:
            raise ValueError(f"a block is damaged: {error}") from None
        if content is None:
            raise ValueError("a block is damaged, cut off, or larger than a block can be")
        return content

    return decompress


def _gzip() -> _Engine:
    return (native.inflate if native.decodes_png else _inflated), zlib.error  # libdeflate takes half of zlib's time


def _inflated(data: bytes, max_bytes: int) -> bytes | None:
    engine = zlib.decompressobj()
    content = engine.decompress(data, max_bytes)
    return content if engine.eof or (not engine.decompress(engine.unconsumed_tail, 1) and engine.eof) else None


def _xz() -> _Engine:
    def decompress(data: bytes, max_bytes: int) -> bytes | None:
        engine = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_XZ_BYTES)
        content = engine.decompress(data, max_bytes)
        return content if engine.eof else None

    return decompress, lzma.LZMAError


def _lz4() -> _Engine:
    with needs_package("lz4", "squashfs", "an image compressed by lz4"):
        import lz4.block
    return lambda data, max_bytes: lz4.block.decompress(data, uncompressed_size=max_bytes), lz4.block.LZ4BlockError


def _zstd() -> _Engine:
    with needs_package("zstandard", "squashfs", "an image compressed by zstd"):
        import zstandard

    def decompress(data: bytes, max_bytes: int) -> bytes:
        size = zstandard.frame_content_size(data)
        if size > max_bytes:
            raise ValueError(f"a block claims {size} bytes, expected {max_bytes} at most")
        return zstandard.ZstdDecompressor().decompress(data, max_output_size=max_bytes)

    return decompress, zstandard.ZstdError


_ENGINES: dict[int, Callable[[], _Engine]] = {1: _gzip, 4: _xz, 5: _lz4, 6: _zstd}
