"""The reads of the parts of batches, with read-ahead for slow storage.

A decoding thread has one read in progress at a time. From memory a read takes microseconds, and this is best. From a
busy file server it takes milliseconds, and nothing is decoded in that time. Then the reads of coming parts are cut into
pieces of a few requests each, and their own threads make these ahead of use:

    coming parts          [1 2 3 4 5 6 7 8] [1 2 3 4 5 6 7 8] [1 2 3 ...    pieces, in the order of the batches
    done, or in progress   d d d d d p d d   p p p d p p p p   p p p

A decoding thread that takes a part makes the pieces that have not begun, and waits for those in progress.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from statistics import median_low
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from dlio.errors import MissingError
from dlio.io import trace, waits
from dlio.io.threads import INTERRUPT_SECONDS, Threads
from dlio.locking.fork_lock import ForkLock

V = TypeVar("V")
R_co = TypeVar("R_co", covariant=True)
Rows = npt.NDArray[np.int64]

_SLOW_SECONDS = 1e-3  # waited for a piece; a local NVMe takes less, a busy file server more
_NUM_WAITS = 15  # the latest waits decide
_FIRST_AHEAD, _MOST_AHEAD = 8, 64  # pieces, and threads; 3,000 images a second at 20 ms a read need 60
_AHEAD_BYTES = 12 << 20  # 130 photographs, of which 60 are being read at 20 ms and 3,000 images a second
_REQUESTS = 4  # in a piece; a request costs 20 us besides reading, a piece 60
REQUEST_BYTES = 256 << 10  # neighbouring records, which `dlio.io.random_access` reads together


def pieces(numbers: Rows, sample_bytes: int) -> list[Rows]:
    """Returns the rows of samples in ascending order of their numbers, cut into pieces of `_REQUESTS` requests.

    Args:
        numbers: of the samples; int64 of shape (n,). Consecutive numbers are neighbours in a file.
        sample_bytes: the size of a sample, roughly.
    """
    order = np.argsort(numbers, kind="stable")
    share = sample_bytes / REQUEST_BYTES
    requests = np.where(np.diff(numbers[order], prepend=-2) == 1, share, max(1.0, share))
    before = np.cumsum(requests) - requests
    return np.split(order, np.flatnonzero(np.diff(before // _REQUESTS)) + 1)


class WaitTimes:
    """How long threads wait for the storage; safe for several threads.

    A pickled copy starts empty.
    """

    def __init__(self) -> None:
        self._waits = deque([_SLOW_SECONDS], maxlen=_NUM_WAITS)  # slow, until measured

    def __reduce__(self) -> tuple[type[WaitTimes], tuple[()]]:
        return WaitTimes, ()

    def note(self, seconds: float) -> None:
        """Records how long a thread waited for a piece, without the time that it worked."""
        self._waits.append(seconds)

    @property
    def is_known(self) -> bool:
        """Whether anything was measured."""
        return len(self._waits) > 1

    @property
    def is_slow(self) -> bool:
        """Whether reading ahead pays."""
        return median_low(tuple(self._waits)) >= _SLOW_SECONDS


class Reads(Generic[R_co]):
    """The reads of one part of a batch; made once.

    Attributes:
        cut: returns the rows of each piece, in the order in which `read` would read them all.
        num_bytes: their size, roughly.
        pace: of the storage.
        read_ahead: the threads that may make them ahead of use.
    """

    def __init__(
        self,
        read: Callable[[Rows | None], list[V]],
        join: Callable[[list[V]], R_co],
        cut: Callable[[], list[Rows]],
        num_bytes: int,
        pace: WaitTimes,
    ) -> None:
        """Reads nothing yet.

        Args:
            read: reads some rows, or all if None; called by any thread.
            join: combines all values that were read.
            cut, num_bytes, pace: see the class.
        """
        self._read: Callable[[Rows | None], list[Any]] = read  # of values for `join`, whatever their type
        self._join: Callable[[list[Any]], R_co] = join
        self.cut = cut
        self._left: Rows | None = None  # all
        self.num_bytes = num_bytes
        self.pace = pace
        self.read_ahead: ReadAhead | None = None

    def take(self) -> R_co:
        """Returns what was read; called once, by the thread that needs it.

        Raises:
            Exception: as `read`.
        """
        values = self._alone() if self.read_ahead and not self.pace.is_known else []
        taken = [] if self.read_ahead is None else self.read_ahead.taken(self)
        values += [value for piece in taken for value in piece.made()] if taken else self._whole()
        join = self._join
        del self._read, self._join, self.cut  # and the memory that was read into
        return join(values)

    def _alone(self) -> list[object]:
        """Reads a row before all others: for a quick disk, the threads would start in vain, and hinder one another."""
        first, *rest = self.cut()
        left = [rows for rows in (first[1:], *rest) if len(rows)]
        self.cut, self._left = lambda: left, np.concatenate([first[:0], *left])
        return self.piece(first[:1])

    def _whole(self) -> list[object]:
        if self._left is not None and not len(self._left):
            return []
        values, waited = _timed(self._read, self._left)
        self.pace.note(waited if waited < _SLOW_SECONDS else waited / max(1, len(self.cut())))
        return values

    def piece(self, rows: Rows) -> list[object]:
        """Reads the rows of a piece; called by any thread."""
        with trace.span("read ahead"):
            values, waited = _timed(self._read, rows)
        self.pace.note(waited)
        return values


def _timed(read: Callable[[Rows | None], V], rows: Rows | None) -> tuple[V, float]:
    """Returns what `read` returns, and the seconds in which this thread waited for the storage.

    If a read does not note them, they are the seconds in which the thread did not run, for whatever reason.
    """
    waits.taken()
    began, worked = time.perf_counter(), time.thread_time()
    values = read(rows)
    waited = waits.taken()
    return values, time.perf_counter() - began - (time.thread_time() - worked) if waited is None else waited


@dataclass(frozen=True, slots=True)
class _Piece:
    """A piece that was handed to the reading threads."""

    call: Callable[[], list[object]]
    future: Future[list[object]]

    def made(self) -> list[object]:
        """Returns what was read; reads it here if no thread has begun."""
        return self.call() if self.future.cancel() else self.future.result()


class ReadAhead:
    """Threads that read for coming parts if the storage is slow; safe for several threads.

    The number of pieces ahead, and of threads, starts small and doubles whenever a part has to wait.
    """

    def __init__(self) -> None:
        """Starts no thread yet."""
        self._threads = Threads(0, "dlio-reader")
        self._lock = ForkLock()
        self._coming: deque[Reads[object]] = deque()
        self._begun: dict[Reads[object], list[_Piece]] = {}  # not yet taken
        self._most = _FIRST_AHEAD  # pieces; 0 once stopped

    def add(self, coming: Iterable[Reads[object]]) -> None:
        """Adds reads that will be taken after those added before."""
        with self._lock:
            for reads in coming:
                reads.read_ahead = self
                self._coming.append(reads)
            self._begin_next()

    def taken(self, reads: Reads[object]) -> list[_Piece]:
        """Returns the pieces of reads that are needed now; none if they are better made as a whole."""
        with self._lock:
            if reads not in self._begun and self._most:
                self._coming.remove(reads)
                if reads.pace.is_slow:
                    self._begin(reads)
            taken = self._begun.pop(reads, [])
            if not all(piece.future.done() for piece in taken):
                self._most = min(2 * self._most, _MOST_AHEAD)
            self._begin_next()
        return taken

    def _begin_next(self) -> None:
        while self._coming and self._has_room(self._coming[0]):
            self._begin(self._coming.popleft())

    def _has_room(self, reads: Reads[object]) -> bool:
        num_bytes = sum(begun.num_bytes for begun in self._begun) + reads.num_bytes
        is_slow = reads.pace.is_known and reads.pace.is_slow
        return is_slow and sum(map(len, self._begun.values())) < self._most and num_bytes <= _AHEAD_BYTES

    def _begin(self, reads: Reads[object]) -> None:
        with suppress(MissingError):  # no more threads can start: the others, and the taker, read it
            self._threads.grow(self._most)
        calls = [partial(reads.piece, rows) for rows in reads.cut()]
        self._begun[reads] = [_Piece(call, self._threads.submit(call)) for call in calls]

    def __enter__(self) -> ReadAhead:
        return self

    def __exit__(self, kind: type[BaseException] | None, *exc_info: object) -> None:
        """Ends the threads; an interrupt does not wait for reads that hang."""
        self.end(INTERRUPT_SECONDS if kind is KeyboardInterrupt else None)

    def stop(self) -> None:
        """Begins nothing more; reads already taken get their pieces."""
        with self._lock:
            self._coming.clear()
            self._most = 0

    def end(self, seconds: float | None) -> bool:
        """Stops, and returns whether all threads ended within `seconds`; None waits for them."""
        self.stop()
        return self._threads.end(seconds)
