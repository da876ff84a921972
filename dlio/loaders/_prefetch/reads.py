"""What the parts of batches read: each by the thread that needs it, or ahead of that by others where storage is slow.

A thread that decodes has one read under way at a time. From memory a read takes microseconds, and that is best; from a
busy file server it takes milliseconds, in which nothing is decoded. There the reads of coming parts are cut into
pieces of a few requests each, which threads of their own make ahead of need:

    coming parts          [1 2 3 4 5 6 7 8] [1 2 3 4 5 6 7 8] [1 2 3 ...    pieces, in the order of the batches
    made, or under way     m m m m m u m m   u u u m u u u u   u u u

A decoding thread that takes a part makes the pieces that nobody has begun and waits for those under way.
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

from dlio.io.threads import INTERRUPT_SECONDS, Threads
from dlio.locking.fork_lock import ForkLock

V = TypeVar("V")
R = TypeVar("R")
Rows = npt.NDArray[np.int64]

_SLOW_SECONDS = 1e-3  # waited for a piece: more than a local NVMe takes, less than a busy file server
_NUM_WAITS = 15  # the latest decide
_FIRST_AHEAD, _MOST_AHEAD = 8, 64  # pieces, and threads; 20 ms a read and 3,000 images a second are 60 under way
_AHEAD_BYTES = 16 << 20  # 180 photographs
_REQUESTS = 4  # of a piece: one costs 20 us besides reading, a piece 60
_REQUEST_BYTES = 256 << 10  # records side by side, as `dlio.io.random_access` reads them together


def pieces(numbers: Rows, sample_bytes: int) -> list[Rows]:
    """Returns the rows of samples by rising number, cut where some requests are together.

    Args:
        numbers: of the samples, which lie side by side where they follow one another; int64 of shape (n,).
        sample_bytes: how large one is, roughly.
    """
    order = np.argsort(numbers, kind="stable")
    share = sample_bytes / _REQUEST_BYTES
    requests = np.where(np.diff(numbers[order], prepend=-2) == 1, share, max(1.0, share))
    before = np.cumsum(requests) - requests
    return np.split(order, np.flatnonzero(np.diff(before // _REQUESTS)) + 1)


class Pace:
    """How long the storage lets threads wait; safe for several threads.

    Pickles, and starts anew in the copy.
    """

    def __init__(self) -> None:
        self._waits = deque([_SLOW_SECONDS], maxlen=_NUM_WAITS)  # slow, until it is known

    def __reduce__(self) -> tuple[type[Pace], tuple[()]]:
        return Pace, ()

    def note(self, seconds: float) -> None:
        """Takes in how long a thread waited for a piece, what it worked meanwhile left out."""
        self._waits.append(seconds)

    @property
    def is_slow(self) -> bool:
        """Whether it pays to read ahead."""
        return median_low(tuple(self._waits)) >= _SLOW_SECONDS


class Reads(Generic[V, R]):
    """What one part of a batch reads, once.

    Attributes:
        num_bytes: how much that is, roughly.
        pace: of the storage.
        ahead: what may read it ahead of need.
    """

    def __init__(
        self,
        read: Callable[[Rows | None], list[V]],
        join: Callable[[list[V]], R],
        cut: Callable[[], list[Rows]],
        num_bytes: int,
        pace: Pace,
    ) -> None:
        """Reads nothing yet.

        Args:
            read: returns what it has read for some rows, or for all of them; called by any thread.
            join: makes one of all that was read.
            cut: returns the rows of each piece, in the order in which `read` would read them all.
            num_bytes, pace: see the class.
        """
        self._read, self._join, self._cut = read, join, cut
        self.num_bytes = num_bytes
        self.pace = pace
        self.ahead: ReadAhead | None = None

    def take(self) -> R:
        """Returns what was read; called once, by the thread that needs it.

        Raises:
            Exception: what reading without pieces would raise.
        """
        pieces = [] if self.ahead is None else self.ahead.taken(self)
        values = [value for piece in pieces for value in piece.made()] if pieces else self._whole()
        join = self._join
        del self._read, self._join, self._cut  # and with them the memory that is read into
        return join(values)

    def _whole(self) -> list[V]:
        values, waited = _timed(self._read, None)
        self.pace.note(waited if waited < _SLOW_SECONDS else waited / max(1, len(self._cut())))
        return values

    def cut(self) -> list[Rows]:
        """Returns the rows of each piece."""
        return self._cut()

    def piece(self, rows: Rows) -> list[V]:
        """Returns what it has read for the rows of a piece; called by any thread."""
        values, waited = _timed(self._read, rows)
        self.pace.note(waited)
        return values


def _timed(read: Callable[[Any], V], rows: Rows | None) -> tuple[V, float]:
    """Returns what is read, and the seconds in which this thread did not work."""
    began, worked = time.perf_counter(), time.thread_time()
    values = read(rows)
    return values, time.perf_counter() - began - (time.thread_time() - worked)


@dataclass(frozen=True, slots=True)
class _Piece(Generic[V]):
    """A piece that was given to the reading threads."""

    call: Callable[[], list[V]]
    future: Future[list[V]]

    def made(self) -> list[V]:
        """Returns what was read, by this thread where no other has begun."""
        return self.call() if self.future.cancel() else self.future.result()


class ReadAhead:
    """Threads that read what coming parts need, where the storage is slow; safe for several threads.

    How many pieces are ahead, and how many threads there are, begins small and doubles whenever a part has to wait.
    """

    def __init__(self) -> None:
        """Starts no thread yet."""
        self._threads = Threads(0, "dlio-reader")
        self._lock = ForkLock()
        self._coming: deque[Reads[Any, Any]] = deque()
        self._begun: dict[Reads[Any, Any], list[_Piece[Any]]] = {}  # what nobody has taken yet
        self._most = _FIRST_AHEAD  # pieces; none once it is stopped

    def add(self, coming: Iterable[Reads[Any, Any]]) -> None:
        """Takes in what will be taken next, behind what was added before."""
        with self._lock:
            for reads in coming:
                reads.ahead = self
                self._coming.append(reads)
            self._begin_next()

    def taken(self, reads: Reads[V, Any]) -> list[_Piece[V]]:
        """Returns the pieces of what is needed now, none where it is better read as a whole."""
        with self._lock:
            if reads not in self._begun and self._most:
                self._coming.remove(reads)
                if reads.pace.is_slow:
                    self._begin(reads)
            pieces = self._begun.pop(reads, [])
            if not all(piece.future.done() for piece in pieces):
                self._most = min(2 * self._most, _MOST_AHEAD)
            self._begin_next()
        return pieces

    def _begin_next(self) -> None:
        while self._coming and self._has_room(self._coming[0]):
            self._begin(self._coming.popleft())

    def _has_room(self, reads: Reads[Any, Any]) -> bool:
        num_bytes = sum(begun.num_bytes for begun in self._begun) + reads.num_bytes
        return reads.pace.is_slow and sum(map(len, self._begun.values())) < self._most and num_bytes <= _AHEAD_BYTES

    def _begin(self, reads: Reads[Any, Any]) -> None:
        with suppress(RuntimeError):  # a system that gives no more threads: those there are, and the taker, read it
            self._threads.grow(self._most)
        calls = [partial(reads.piece, rows) for rows in reads.cut()]
        self._begun[reads] = [_Piece(call, self._threads.submit(call)) for call in calls]

    def __enter__(self) -> ReadAhead:
        return self

    def __exit__(self, kind: type[BaseException] | None, *exc_info: object) -> None:
        """Ends the threads; whoever interrupts does not wait for reads that hang."""
        self.end(INTERRUPT_SECONDS if kind is KeyboardInterrupt else None)

    def stop(self) -> None:
        """Begins nothing more; what is taken already gets its pieces."""
        with self._lock:
            self._coming.clear()
            self._most = 0

    def end(self, seconds: float | None) -> bool:
        """Stops, and returns whether all threads have ended within `seconds`; None waits."""
        self.stop()
        return self._threads.end(seconds)
