"""Prefetching: threads read what is needed next, in order, with enough reads at a time to hide the latency.

A read from memory takes a few microseconds, and handing it to a thread longer. So the caller reads by itself until
two reads in a row are slow. Then threads read: more of them whenever the caller has to wait, fewer if it never waits.
"""

from __future__ import annotations

import resource
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from functools import partial
from queue import Empty, SimpleQueue
from typing import Generic, Protocol, TypeVar

from dlio.dataset.remote import REQUEST_BYTES, fetch_range
from dlio.dataset.shard import File
from dlio.io.files import Closeable
from dlio.io.remote_files import RemoteFiles
from dlio.io.threads import Threads
from dlio.pack import pace

T = TypeVar("T")
R = TypeVar("R")
T_co = TypeVar("T_co", covariant=True)

MOST_READS = 96  # of one process: 8,192 stats on a server that answers in 5 ms take less than a second
MOST_BYTES = 16 << 20  # prefetched, or being read: with what is written, a worker stays below 64 MB
SLOW_SECONDS = 0.0005  # a read from memory takes 5 to 20 us, from a local disk 100, from a server 300 and more
_FAST_SECONDS = 1e-5  # of each small file that is read with others from memory
_FIRST_READS = 8
_MOST_IN_GROUP = 256  # small files that one call reads
_SMALLER = 8  # the next group after a slow one: a busy machine costs little, and storage that became slow not much
_PATIENT, _AT_ONCE = 2.0, 0.0  # seconds to wait at the end for reads that are not needed any more

_Answer = SimpleQueue["tuple[T | None, BaseException | None]"]


def idle_clock() -> float:
    """Returns a time in seconds that stops while this thread computes, for calls that do more than read."""
    return time.perf_counter() - time.thread_time()


class ReadGroup(Protocol[T_co]):
    """Items that one call has read, or the error of each."""

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[T_co | Exception]: ...


class Depth:
    """How many reads are in flight: 0 for storage that answers at once; adapts to the reads.

    Attributes:
        reads: the number of reads in flight.
        slow: the number of the caller's own reads in a row that were slow.
        clock: measures the caller's own reads, in seconds.
        in_group: how many small items one call of the caller reads.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.reads = 0
        self.clock = clock
        self.slow = 0
        self.in_group = 1
        self._in_time = self._settling = 0

    def was_slow(self) -> None:
        """Notes that the caller's own read was slow; a single slow read may be a pause of this process."""
        self.slow += 1
        if self.slow == 2:
            self.reads, self.slow = _FIRST_READS, 0

    def handed_out(self, waited: bool) -> None:
        """Notes whether the caller had to wait for a read; ignores waits for reads begun before the last change."""
        self._settling -= 1
        self._in_time = 0 if waited else self._in_time + 1
        if waited and self._settling <= 0 and self.reads < MOST_READS:
            self._change(min(2 * self.reads, MOST_READS))
        elif self._in_time > 2 * self.reads:
            self._change(self.reads // 2 if self.reads > 2 else 0)

    def _change(self, reads: int) -> None:
        self._settling, self._in_time, self.reads = reads, 0, reads


#: What this process, and its parent before the fork, learned about the storage of its files.
_learned = Depth()


class Prefetcher(Generic[T]):
    """Calls `read` with 0, 1, 2, ... by threads, before the results are needed; a context, used by one thread.

    An error is raised when its result is asked for. If another number than the next is asked for, it continues there.
    """

    def __init__(
        self,
        read: Callable[[int], T],
        sizes: Sequence[int] | Callable[[int], int],
        count: int,
        depth: Depth | None = None,
        read_group: Callable[[range], ReadGroup[T]] | None = None,
        opened: Iterable[Closeable] = (),
    ) -> None:
        """Starts no read yet.

        Args:
            read: reads the item of a number; called by any thread.
            sizes: the expected size of each item in bytes.
            count: the number of items.
            depth: how many reads are in flight; by default what this process has learned.
            read_group: reads several small items by one call, in less time. It returns, for all of them or for the
                first ones, what `read` returns or the error that `read` raises.
            opened: what is closed at the end, such as the files that `read` reads.
        """
        self._read = pace.bound(read)
        self._read_group = read_group
        self._group: deque[T | Exception] = deque()  # read with others, not handed out yet
        self._group_next = 0  # the number of the first of them
        self._size = sizes if callable(sizes) else sizes.__getitem__
        self._count = count
        self._opened = opened
        self._depth = depth or _learned
        self._next = self._held = self._in_use = self._num_threads = 0
        self._begun: deque[tuple[int, int, _Answer[T]]] = deque()
        self._calls: SimpleQueue[tuple[int, _Answer[T]] | None] = SimpleQueue()
        self._threads = Threads(0, "dlio-reader")

    def __enter__(self) -> Prefetcher[T]:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close(_PATIENT if kind is None or issubclass(kind, Exception) else _AT_ONCE)

    def __call__(self, number: int) -> T:
        """Returns the result of `read(number)`, or raises its error."""
        if self._group:
            if number == self._group_next:
                self._group_next += 1
                if isinstance(found := self._group.popleft(), Exception):
                    raise found
                return found
            self._group.clear()
        if not (self._begun or self._depth.reads):
            return self._read_now(lambda: self._read(number))
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

    def several(self, number: int, kind: type[R]) -> R | None:
        """Returns several items from `number` on if `read_group` reads them and returns a `kind`.

        Else it returns None, and they must be asked for one by one.
        """
        depth = self._depth
        if self._read_group is None or depth.in_group == 1 or self._group or self._begun or depth.reads:
            return None
        numbers, read_group = range(number, min(number + depth.in_group, self._count)), self._read_group
        found = self._read_now(lambda: read_group(numbers), len)
        if len(found) and isinstance(found, kind):  # a signal may end the call before its first file
            return found
        self._group, self._group_next = deque(found), number
        return None

    def _read_now(self, read: Callable[[], R], count: Callable[[R], int] = lambda one: 1) -> R:
        """Reads by the caller's thread: one item, or several small ones once the storage has answered at once."""
        depth = self._depth
        waits = _num_waits() if depth.slow else -1
        began = depth.clock()
        result = read()
        seconds = depth.clock() - began
        if seconds < SLOW_SECONDS + count(result) * _FAST_SECONDS or _num_waits() == waits:  # or others had the core
            depth.slow = 0
            depth.in_group = min(2 * depth.in_group, _MOST_IN_GROUP)
        else:
            depth.was_slow()
            depth.in_group = max(1, depth.in_group // _SMALLER)
        return result

    def _begin(self) -> None:
        """Starts reads as far as depth and bytes allow, at least one."""
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
        """Starts a thread; at most one for each read in flight, since a thread keeps the memory of its last read."""
        self._num_threads += 1
        self._threads.grow(self._num_threads)
        self._threads.submit(partial(_serve, self._read, self._calls))

    def _drop(self) -> None:
        """Drops all reads that were started."""
        try:
            while True:
                self._calls.get_nowait()
        except Empty:
            self._begun.clear()

    def close(self, seconds: float) -> None:
        """Ends the threads; a thread that hangs in a read for longer than `seconds` is abandoned."""
        self._drop()
        self._group.clear()
        for _ in range(self._num_threads):
            self._calls.put(None)
        self._threads.end(seconds)
        for each in self._opened:
            each.close()


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
        del call, answer  # free what was read before this thread waits


def side_by_side(
    call: Callable[[T], R],
    items: Iterable[T],
    depth: Depth | None = None,
    weigh: Callable[[R], int] = lambda result: 0,
) -> Generator[R, None, None]:
    """Yields the result of `call` for each item, in order; runs several calls at a time if they are slow.

    Args:
        call: called by any thread, at most once for each item.
        items: the arguments of the calls.
        depth: what is known about the duration of the calls; by default that of reading files.
        weigh: returns the size of a result in bytes; the mean so far is expected of the next results.

    Raises:
        Exception: what `call` raised, at the item's turn.
    """
    arguments, total, count = list(items), 0, 0

    def expected(_: int) -> int:
        return total // max(1, count)

    with Prefetcher(lambda number: call(arguments[number]), expected, len(arguments), depth) as result:
        for number in range(len(arguments)):
            found = result(number)
            total, count = total + weigh(found), count + 1
            yield found


def blocks_at(files: RemoteFiles, file: File) -> Generator[bytes, None, None]:
    """Yields a file's bytes at a URL in blocks; raises as `fetch_range`."""
    begins = range(0, file.num_bytes, REQUEST_BYTES)

    def fetch(number: int) -> bytes:
        return fetch_range(files, file.name, begins[number], min(begins[number] + REQUEST_BYTES, file.num_bytes))

    with Prefetcher(fetch, lambda _: REQUEST_BYTES, len(begins), Depth()) as block:  # other threads use the learned one
        yield from map(block, range(len(begins)))
