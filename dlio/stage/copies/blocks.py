"""Which blocks of an unfinished file are present: a bit for each 16 KiB, in a small file next to it.

Bit b, in little-endian order, is set when block b is whole in the file; the last block may be shorter. One process
writes the data first and the bit after it; others map the small file. The process that writes does not map it: if the
disk fails, a write is an error, and a mapped page ends the process.
"""

from __future__ import annotations

import mmap
import os
import stat
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from dlio.errors import StorageError
from dlio.io import files, world
from dlio.io.files import Span

BLOCK_BYTES = 16 << 10
_FEW = 4096  # blocks
_CLOSED = -1


def bitmap_bytes(num_bytes: int) -> int:
    """Returns the size of the bitmap of a file of `num_bytes`; never 0, since no empty file can be mapped."""
    return max(1, -(-num_bytes // (8 * BLOCK_BYTES)))


class Blocks:
    """The bitmap of a file. Safe for several threads, one process of which writes; a forked child may read it, too."""

    def __init__(self, descriptor: int, num_bytes: int, bits: bytearray | None = None) -> None:
        """Takes the bits of an open bitmap, or maps it; the caller closes `descriptor`; raises OSError."""
        self.num_bytes, self._descriptor = num_bytes, _CLOSED
        self._bits: bytearray | mmap.mmap
        if bits is not None:
            self._bits, self._descriptor = bits, os.dup(descriptor)
            self._close: Callable[[], object] = weakref.finalize(self, os.close, self._descriptor)
        else:
            self._bits = mapped = mmap.mmap(descriptor, bitmap_bytes(num_bytes), access=mmap.ACCESS_READ)
            self._close = mapped.close
        self._writing = world.lock()
        last = -(-num_bytes // BLOCK_BYTES)
        self._all = (1 << last) - 1

    @classmethod
    def create(cls, path: Path, num_bytes: int) -> Blocks:
        """Returns the bitmap of a new file, of which nothing is present; what was at `path` is replaced.

        Raises:
            StorageError: the file system refused; its room is reserved, so that later writes do not fill the disk.
        """
        with files.storage_errors("create", path):
            path.unlink(missing_ok=True)
            descriptor = world.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            try:
                os.posix_fallocate(descriptor, 0, size := bitmap_bytes(num_bytes))
                return cls(descriptor, num_bytes, bytearray(size))  # not read: a wrong bit would be a block too many
            finally:
                os.close(descriptor)

    @classmethod
    def open(cls, path: Path, num_bytes: int, *, is_writable: bool = False) -> Blocks:
        """Returns an existing bitmap.

        Raises:
            StorageError: it is missing, no regular file of this user, or not that of a file of `num_bytes`.
        """
        flags = (os.O_RDWR if is_writable else os.O_RDONLY) | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        with files.storage_errors("open", path):
            descriptor = world.open(path, flags)
            try:
                status = os.fstat(descriptor)
                if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
                    raise StorageError(f"cannot open {path}: it is not a regular file of this user")
                if status.st_size != (size := bitmap_bytes(num_bytes)):
                    expected = f"expected {size} bytes, found {status.st_size}"
                    raise StorageError(f"{path} is not of a file of {num_bytes} bytes: {expected}; stage again")
                if not is_writable:
                    return cls(descriptor, num_bytes)
                return cls(descriptor, num_bytes, bytearray(world.pread(descriptor, size, 0).ljust(size, b"\0")))
            finally:
                os.close(descriptor)

    def missing(self, begin: int, end: int) -> list[Span]:
        """Returns the ranges that are not there, rounded out to blocks, in order and apart from each other."""
        return self.missing_of([(begin, end)])

    def missing_of(self, ranges: Sequence[Span]) -> list[Span]:
        """Returns what is missing of several ranges, as `missing` does: each block once."""
        found: list[Span] = []
        touched = [self._touched(begin, end) for begin, end in ranges]
        for start, stop in touched if len(touched) == 1 else _joined(touched):
            if absent := ~self._number(start, stop) & (1 << stop - start) - 1:
                found += (
                    ((start + first) * BLOCK_BYTES, min((start + last) * BLOCK_BYTES, self.num_bytes))
                    for first, last in (_runs if stop - start <= _FEW else _many_runs)(absent)
                )
        return found

    def set(self, begin: int, end: int) -> None:
        """Notes that the bytes from `begin` up to `end` are written; blocks that are there in part do not count.

        Raises:
            OSError: the bitmap cannot be written; so does `clear`.
        """
        first = -(-begin // BLOCK_BYTES)
        last = -(-self.num_bytes // BLOCK_BYTES) if end >= self.num_bytes else end // BLOCK_BYTES
        self._change(first, last, is_there=True)

    def clear(self, begin: int, end: int) -> None:
        """Notes that every block that touches the range is not there."""
        self._change(*self._touched(begin, end), is_there=False)

    @property
    def is_whole(self) -> bool:
        """Whether all blocks are present."""
        return int.from_bytes(self._bits[:], "little") & self._all == self._all

    @property
    def present_bytes(self) -> int:
        """How many bytes of the file are present."""
        there = int.from_bytes(self._bits[:], "little") & self._all
        num_blocks = self._all.bit_length()
        short = BLOCK_BYTES * num_blocks - self.num_bytes if there >> max(0, num_blocks - 1) else 0
        return there.bit_count() * BLOCK_BYTES - short

    def close(self) -> None:
        """Closes the bitmap; may be called twice, and while other threads change it: that has no effect then."""
        with self._writing:
            self._descriptor = _CLOSED
            self._close()

    def _touched(self, begin: int, end: int) -> tuple[int, int]:
        """Returns the first block of a range within the file, and the one after its last."""
        end = min(end, self.num_bytes)
        first = max(begin, 0) // BLOCK_BYTES
        return first, max(first, -(-end // BLOCK_BYTES)) if begin < end else first

    def _number(self, first: int, last: int) -> int:
        """Returns the bits from block `first` as a number; beyond `last` there may be more."""
        return int.from_bytes(self._bits[first >> 3 : last + 7 >> 3], "little") >> (first & 7)

    def _change(self, first: int, last: int, *, is_there: bool) -> None:
        if first >= last:
            return
        begin, end = first >> 3, last + 7 >> 3
        changed = ((1 << last - first) - 1) << (first & 7)
        with self._writing:
            bits = int.from_bytes(self._bits[begin:end], "little")
            bits = bits | changed if is_there else bits & ~changed
            self._bits[begin:end] = written = bits.to_bytes(end - begin, "little")
            if self._descriptor != _CLOSED:
                world.pwrite(self._descriptor, written, begin)


def _joined(ranges: Iterable[Span]) -> Iterator[Span]:
    """Yields ranges of blocks in order, those that overlap or touch as one."""
    begin = end = -1
    for first, last in sorted(ranges):
        if first > end:
            if end > begin:
                yield begin, end
            begin = first
        end = max(end, last)
    if end > begin:
        yield begin, end


def _many_runs(bits: int) -> Iterator[Span]:
    """Yields what `_runs` does, in a time that grows with the bits alone."""
    data = np.frombuffer(bits.to_bytes(bits.bit_length() + 7 >> 3, "little"), dtype=np.uint8)
    edges = np.flatnonzero(np.diff(np.unpackbits(data, bitorder="little"), prepend=0, append=0))
    yield from zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True)


def _runs(bits: int) -> Iterator[Span]:
    """Yields where runs of ones begin and end in a number, counted from its lowest bit.

    Small numbers of Python take a microsecond where arrays of numpy take twenty, and an agent asks for each piece.
    """
    passed = 0
    while bits:
        zeros = (bits & -bits).bit_length() - 1
        bits >>= zeros
        ones = (bits + 1 & -(bits + 1)).bit_length() - 1
        yield passed + zeros, passed + zeros + ones
        bits >>= ones
        passed += zeros + ones
