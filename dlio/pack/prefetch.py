"""Reading ahead: what is needed next is read by threads, in order, as many at a time as the storage's answers ask for.

A read from memory takes some microseconds, and a thread more than that: so the caller reads by itself until two reads
in a row were slow. Then threads do, more of them whenever the caller has to wait, fewer when it never does.
"""

from __future__ import annotations

import resource
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from functools import partial
from queue import Empty, SimpleQueue
from typing import Generic, TypeVar

from dlio.io.threads import Threads
from dlio.pack import pace

T = TypeVar("T")
R = TypeVar("R")

MOST_READS = 96  # of one process: 8,192 looks at a server that answers in 5 ms take less than a second
MOST_BYTES = 16 << 20  # read ahead, or about to be: with what is written a worker stays below 64 MB
SLOW_SECONDS = 0.0005  # a read from memory takes 5 to 20 us, from a local disk 100, from a server 300 and more
_FIRST_READS = 8
_MOST_IN_GROUP = 64  # small files that one call reads: 32 to 128 take the same time each
_PATIENT, _AT_ONCE = 2.0, 0.0  # seconds to wait at the end for reads that nobody wants any more

_Answer = SimpleQueue["tuple[T | None, BaseException | None]"]
Group = Callable[[range], "Sequence[T | Exception]"]


def idle_clock() -> float:
    """Returns a time in seconds that stands still while this thread computes: for calls that do more than read."""
    return time.perf_counter() - time.thread_time()


class Depth:
    """How many reads are kept under way: 0 where the storage answers at once; learns from what it is told.

    Attributes:
        reads: the number.
        slow: how many of the caller's own reads were slow, one after the other.
        clock: tells how long the caller's own reads take, in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter, most: int = MOST_READS) -> None:
        self.reads = 0
        self.clock = clock
        self.slow = 0
        self._most = most
        self._in_time = self._settling = 0

    def was_slow(self) -> None:
        """Learns that the caller's own read took long; one alone may be a pause of this process."""
        self.slow += 1
        if self.slow == 2:
            self.reads, self.slow = min(_FIRST_READS, self._most), 0

    def handed_out(self, waited: bool) -> None:
        """Learns whether the caller had to wait for a read; what was begun before the last change tells nothing."""
        self._settling -= 1
        self._in_time = 0 if waited else self._in_time + 1
        if waited and self._settling <= 0 and self.reads < self._most:
            self._change(min(2 * self.reads, self._most))
        elif self._in_time > 2 * self.reads:
            self._change(self.reads // 2 if self.reads > 2 else 0)

    def _change(self, reads: int) -> None:
        self._settling, self._in_time, self.reads = reads, 0, reads


#: What this process, and before a fork its parent, has learned of the storage that it reads files from.
_learned = Depth()


class ReadAhead(Generic[T]):
    """Calls `read` with 0, 1, 2, ..., by threads, before its results are asked for; used by one thread.

    An error comes when its result is asked for. Asked for another number than the next, it goes on from there.
    """

    def __init__(
        self,
        read: Callable[[int], T],
        sizes: Sequence[int] | Callable[[int], int],
        count: int,
        depth: Depth,
        read_group: Group[T] | None = None,
    ) -> None:
        """Begins nothing yet.

        Args:
            read: reads what has a number, by any thread.
            sizes: how many bytes each is expected to take while it is read.
            count: how many there are.
            depth: how many reads are kept under way.
            read_group: reads several small ones by one call, where that takes less time; returns for each, or for the
                first of them only, what `read` returns or the error that it raises.
        """
        self._read = pace.bound(read)
        self._read_group = read_group
        self._group: deque[tuple[int, T | Exception]] = deque()
        self._in_group = 1
        self._size = sizes if callable(sizes) else sizes.__getitem__
        self._count = count
        self._depth = depth
        self._next = self._held = self._in_use = self._num_threads = 0
        self._begun: deque[tuple[int, int, _Answer[T]]] = deque()
        self._calls: SimpleQueue[tuple[int, _Answer[T]] | None] = SimpleQueue()
        self._threads: list[Threads] = []

    def __call__(self, number: int) -> T:
        """Returns what `read` returns for `number`, or raises what it raises."""
        if self._group:
            position, found = self._group.popleft()
            if position == number:
                return _of_group(found)
            self._group.clear()
        if not (self._begun or self._depth.reads):
            return self._read_now(number)
        if self._begun and self._begun[0][0] != number:
            self._drop()
        if not self._begun:
            self._held, self._in_use, self._next = 0, 0, number
        self._begin()
        _, size, answer = self._begun.popleft()
        self._depth.handed_out(waited=answer.empty())
        result, error = answer.get()
        self._held -= self._in_use
        self._in_use = size
        self._begin()
        if error is not None:
            raise error
        return result  # type: ignore[return-value]

    def _read_now(self, number: int) -> T:
        """Reads by the caller's thread: one, or several small ones once the storage has answered at once."""
        depth = self._depth
        waits = _num_waits() if depth.slow else -1
        began = depth.clock()
        if self._read_group is None or self._in_group == 1:
            result = self._read(number)
        else:
            result = self._read_now_in_group(number, self._read_group)
        if depth.clock() - began < SLOW_SECONDS or _num_waits() == waits:  # or other processes had the core
            depth.slow = 0
            self._in_group = min(2 * self._in_group, _MOST_IN_GROUP)
        else:
            depth.was_slow()
            self._in_group = 1
        return result

    def _read_now_in_group(self, number: int, read_group: Group[T]) -> T:
        numbers = range(number, min(number + self._in_group, self._count))
        results = read_group(numbers)
        self._group.extend(zip(numbers[1:], results[1:], strict=False))
        return _of_group(results[0]) if results else self._read(number)

    def _begin(self) -> None:
        """Begins reads as far as depth and bytes allow, one at least."""
        while self._next < self._count and len(self._begun) < max(1, self._depth.reads):
            size = self._size(self._next)
            if self._begun and self._held + size > MOST_BYTES:
                break
            answer: _Answer[T] = SimpleQueue()
            self._begun.append((self._next, size, answer))
            self._held += size
            if len(self._begun) > self._num_threads:
                self._start()
            self._calls.put((self._next, answer))
            self._next += 1

    def _start(self) -> None:
        """Starts a thread; no more than reads are under way, as each keeps some memory that it has read into."""
        threads = Threads(1, "dlio-reader")
        self._threads.append(threads)
        self._num_threads += 1
        threads.submit(partial(_serve, self._read, self._calls))

    def _drop(self) -> None:
        """Forgets what was begun."""
        try:
            while True:
                self._calls.get_nowait()
        except Empty:
            self._begun.clear()

    def close(self, seconds: float = _PATIENT) -> None:
        """Ends the threads; one that hangs in a read for longer than `seconds` is left to itself."""
        self._drop()
        for _ in range(self._num_threads):
            self._calls.put(None)
        deadline = time.monotonic() + seconds
        for threads in self._threads:
            threads.end(max(0.0, deadline - time.monotonic()))


def _of_group(found: T | Exception) -> T:
    if isinstance(found, Exception):
        raise found
    return found


def _num_waits() -> int:
    """Returns how often this thread has waited for something, as for a disk, other than for the processor."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw


def _serve(read: Callable[[int], T], calls: SimpleQueue[tuple[int, _Answer[T]] | None]) -> None:
    while (call := calls.get()) is not None:
        number, answer = call
        try:
            answer.put((read(number), None))
        except BaseException as error:
            answer.put((None, error))
        del call, answer  # while this thread waits, nothing that was read is kept


@contextmanager
def reading_ahead(
    read: Callable[[int], T],
    sizes: Sequence[int] | Callable[[int], int],
    count: int,
    depth: Depth | None = None,
    read_group: Group[T] | None = None,
) -> Generator[ReadAhead[T], None, None]:
    """Gives a `ReadAhead`, and ends its threads."""
    ahead = ReadAhead(read, sizes, count, depth or _learned, read_group)
    patience = _AT_ONCE
    try:
        yield ahead
        patience = _PATIENT
    except Exception:
        patience = _PATIENT
        raise
    finally:
        ahead.close(patience)


def side_by_side(
    call: Callable[[T], R],
    items: Iterable[T],
    depth: Depth | None = None,
    weigh: Callable[[R], int] = lambda result: 0,
) -> Generator[R, None, None]:
    """Yields what `call` returns for each item, in order, several at a time where they take long.

    Args:
        call: called by any thread.
        items: what it is called with, at most once each.
        depth: what is known of how long they take; by default what is of reading files.
        weigh: returns how many bytes a result takes; those to come are taken for the mean of those before.

    Raises:
        Exception: what `call` raised, when it is the item's turn.
    """
    waiting, mean = list(items), _Mean()
    with reading_ahead(lambda number: call(waiting[number]), mean.get, len(waiting), depth) as result:
        for number in range(len(waiting)):
            found = result(number)
            mean.add(weigh(found))
            yield found


class _Mean:
    """The mean of some numbers, 0 of none."""

    def __init__(self) -> None:
        self._total = self._count = 0

    def add(self, number: int) -> None:
        self._total += number
        self._count += 1

    def get(self, _: int) -> int:
        return self._total // max(1, self._count)
