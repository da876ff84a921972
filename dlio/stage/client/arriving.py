"""A file that is read while the agent of this node brings it, and a file that this node does not keep."""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dlio.errors import StorageError
from dlio.io import arrivals
from dlio.io.files import Span
from dlio.io.random_access import Numbers, RandomAccessFile, within
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

    def fill(self, offsets: Numbers, sizes: Numbers, memory: memoryview, places: Numbers) -> None:
        """Reads ranges, which lie within the file, to places in memory."""
        is_here = self._brought(within(offsets, offsets + sizes, self.num_bytes))
        (self._file if is_here else self._passed).fill(offsets, sizes, memory, places)

    def will_need(self, starts: Numbers, stops: Numbers) -> None:
        """Has the ranges brought; waits for them."""
        if self._brought(within(starts, stops, self.num_bytes)):
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

    def fill(self, offsets: Numbers, sizes: Numbers, memory: memoryview, places: Numbers) -> None:
        """Reads ranges, which lie within the file, to places in memory; they come together."""
        ranges = within(offsets, offsets + sizes, self.num_bytes)
        if arrivals.is_from_source():
            self._agent.bad(ranges)
        total, is_together = int(sizes.sum()), (np.diff(places) == sizes[:-1]).all()
        found = memory[int(places[0]) :][:total] if total and is_together else memoryview(bytearray(total))
        if found:
            self._agent.read(ranges, found)
        if not is_together:
            for place, size in zip(places.tolist(), sizes.tolist(), strict=True):
                memory[place : place + size], found = found[:size], found[size:]

    def will_need(self, starts: Numbers, stops: Numbers) -> None:
        """Does nothing: what passes through is not kept."""

    def close(self) -> None:
        """Does nothing."""


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
