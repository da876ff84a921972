"""A file that is read while the agent of this node brings it, and a file that this node does not keep."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dlio.errors import StorageError
from dlio.io import arrivals
from dlio.io.files import Span
from dlio.io.random_access import Numbers, RandomAccessFile, Take
from dlio.stage.copies.blocks import Blocks


@dataclass(frozen=True, slots=True)
class Wanted:
    """Requests to the agent about one file; each call waits for the answer.

    Attributes:
        need: brings ranges into the file, and returns whether this node keeps it.
        read: fills memory with ranges.
        bad: has ranges brought again from the source.
    """

    need: Callable[[Sequence[Span]], bool]
    read: Callable[[Sequence[Span], memoryview], None]
    bad: Callable[[Sequence[Span]], None]


class ArrivingFile:
    """A file on this node of which some blocks are missing; an `Arrival`.

    It stays open when the file gets its final name, since it is the same file.
    """

    def __init__(self, file: RandomAccessFile, blocks: Blocks, final: Path, agent: Wanted) -> None:
        """Takes over the open file and its blocks; `final` is its name when it is whole."""
        self.num_bytes = file.num_bytes
        self._file = file
        self._blocks: Blocks | None = blocks
        self._final = final
        self._agent = agent
        self._passed = PassedFile(file.num_bytes, agent)
        file.path = final  # for errors

    def read(self, offset: int, num_bytes: int, record: int | None = None) -> bytes:
        """Returns exactly `num_bytes` from `offset`, which lie within the file."""
        if not self._brought([(offset, offset + num_bytes)]):
            return self._passed.read(offset, num_bytes, record)
        return self._file.read(offset, num_bytes, record)

    def read_many(self, offsets: Numbers, sizes: Numbers, take: Take) -> Iterator[list[memoryview]]:
        """Yields ranges, in order, as read-only views."""
        is_here = self._brought(_ranges(offsets, offsets + sizes, self.num_bytes))
        yield from (self._file if is_here else self._passed).read_many(offsets, sizes, take)

    def will_need(self, starts: Numbers, stops: Numbers) -> None:
        """Has the ranges brought; waits for them."""
        if self._brought(_ranges(starts, stops, self.num_bytes)):
            self._file.will_need(starts, stops)

    def _brought(self, ranges: Sequence[Span]) -> bool:
        """Returns whether the ranges are in the file, after having them brought."""
        blocks = self._blocks
        if blocks is None:
            return True
        if arrivals.is_from_source():
            self._agent.bad(ranges)
        missing = blocks.missing_of(ranges)
        if not missing:
            if blocks.is_whole and self._final.exists():
                self._blocks = None  # its digest was right; others may be reading the bits, so they stay mapped
            return True
        return self._agent.need(missing) and not blocks.missing_of(missing)  # an agent that began again fills another

    def close(self) -> None:
        """Closes the file; may be called twice."""
        self._blocks = None
        self._file.close()


class PassedFile:
    """A file that another node or the source keeps; an `Arrival`."""

    def __init__(self, num_bytes: int, agent: Wanted) -> None:
        self.num_bytes = num_bytes
        self._agent = agent

    def read(self, offset: int, num_bytes: int, record: int | None = None) -> bytes:
        """Returns exactly `num_bytes` from `offset`, which lie within the file."""
        memory = memoryview(bytearray(num_bytes))
        self._filled([(offset, offset + num_bytes)], memory)
        return bytes(memory)

    def read_many(self, offsets: Numbers, sizes: Numbers, take: Take) -> Iterator[list[memoryview]]:
        """Yields ranges, in order, as read-only views; they come together."""
        ranges = _ranges(offsets, offsets + sizes, self.num_bytes)
        ends = np.cumsum([end - begin for begin, end in ranges]).tolist()
        if not ends:
            return
        memory = take(ends[-1])
        self._filled(ranges, memory)
        data = memory.toreadonly()
        yield [data[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]

    def _filled(self, ranges: Sequence[Span], memory: memoryview) -> None:
        if arrivals.is_from_source():
            self._agent.bad(ranges)
        if len(memory):
            self._agent.read(ranges, memory)

    def will_need(self, starts: Numbers, stops: Numbers) -> None:
        """Does nothing: what passes through is not kept."""

    def close(self) -> None:
        """Does nothing."""


def _ranges(starts: Numbers, stops: Numbers, num_bytes: int) -> list[Span]:
    """Returns ranges, as far as they lie within a file of `num_bytes`."""
    begins = np.minimum(starts, num_bytes)
    return list(zip(begins.tolist(), np.clip(stops, begins, num_bytes).tolist(), strict=True))


def open_arriving(unfinished: Path, bits: Path, final: Path, num_bytes: int, agent: Wanted) -> arrivals.Arrival | None:
    """Returns a file that this node keeps, None if it has neither of its names now.

    Raises StorageError if a file is there and cannot be opened, or is of another size.
    """
    try:
        if final.exists():
            return RandomAccessFile(final)
        file = RandomAccessFile(unfinished)
        if file.num_bytes != num_bytes:
            raise StorageError(f"{unfinished} has {file.num_bytes:,} bytes, expected {num_bytes:,}: stage again")
        return ArrivingFile(file, Blocks.open(bits, num_bytes), final, agent)
    except StorageError as error:
        if error.errno == errno.ENOENT:
            return None
        raise
