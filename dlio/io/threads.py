"""Threads that can be abandoned: if one hangs on a dead disk, neither its consumer nor the interpreter waits for it.

Every thread of dlio is started by `dlio.io.world`, so that an error names the limit where the system allows no more.
"""

from __future__ import annotations

import atexit
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import CancelledError, Future, wait
from contextlib import nullcontext, suppress
from functools import partial
from queue import Empty, SimpleQueue
from threading import Event, Lock, current_thread, main_thread
from typing import Any, TypeVar

from dlio.errors import MissingError, StorageError
from dlio.io import world
from dlio.io.files import Closeable

T = TypeVar("T")
A = TypeVar("A")
_EXIT_SECONDS = 5.0  # a part takes some 20 ms; one that takes longer at exit hangs

INTERRUPT_SECONDS = 1.0  # the most that an interrupt waits for a thread that hangs

_READERS = 64
_SLOW_SECONDS = 0.0002  # for one file: from memory it takes 20 us, from a disk 100, from a server 300 and more
_TURN_SECONDS = 1.0  # a read may hang
_LATEST = 4  # reads
_AT_ONCE = 2  # files that a thread reads in a row, if there are more than threads

_Call = tuple[Future[Any], Callable[[], Any]]
_Calls = SimpleQueue[_Call | None]


def started_up_to(count: int, call: Callable[[], object], name: str) -> list[world.Thread]:
    """Returns threads as `world.start`; fewer where the system allows no more, but one; raises MissingError."""
    found: list[world.Thread] = []
    while len(found) < count:
        try:
            found.append(world.start(call, name))
        except MissingError:
            if not found:
                raise
            break
    return found


def in_threads(count: int, call: Callable[[A], T], items: Sequence[A], name: str) -> list[T]:
    """Returns what `call` returns for each item, by up to `count` threads of this call; raises what it raises first.

    A single item takes no thread.
    """
    if len(items) < 2:
        return list(map(call, items))
    found: dict[int, T] = {}
    failed: list[BaseException] = []
    left = iter(range(len(items)))

    def work() -> None:
        try:
            for number in left:
                found[number] = call(items[number])
                if failed:
                    return
        except BaseException as error:
            failed.append(error)

    for thread in started_up_to(min(count, len(items)), work, name):
        thread.join()
    if failed:
        raise failed[0]
    return [found[number] for number in range(len(items))]


class Threads:
    """A number of threads that call functions, in the order in which these are submitted; used by one thread.

    Where the system allows fewer threads, but one, there are fewer. As a context manager, it ends the threads, and
    waits a moment for them: a call that still runs then was left behind by an interrupt, or with an unwanted result.

    They are daemons, since the interpreter would wait for other threads without end. But a daemon stopped in compiled
    code may crash the exit, so an exit handler first ends the threads that are left, and waits some seconds for them.
    """

    def __init__(self, count: int, name: str) -> None:
        """Starts up to `count` threads, each called `name`; raises as `grow`."""
        self._calls: _Calls = SimpleQueue()
        self._name = name
        self._threads: list[world.Thread] = []
        self._is_stopped = False
        self.grow(count)
        _started.add(self)

    def grow(self, count: int) -> None:
        """Starts threads until there are `count`, or the system allows no more.

        Raises:
            MissingError: not even the first can be started.
        """
        with suppress(MissingError) if self._threads else nullcontext():
            self._threads += started_up_to(count - len(self._threads), partial(_serve, self._calls), self._name)

    def submit(self, call: Callable[[], T]) -> Future[T]:
        """Returns the future result of `call`, which the next free thread calls; once stopped, it is cancelled."""
        future: Future[T] = Future()
        self._calls.put((future, call))
        if self._is_stopped:  # checked last: else a stop in between would miss it
            future.cancel()
        return future

    def each(self, call: Callable[[A], T], items: Iterable[A]) -> list[T]:
        """Returns what `call` returns for each item, here if there are no threads.

        After an error no call runs any more, however long that takes: the caller may use again what they write to. Only
        an interrupt does not wait for calls that hang.

        Raises:
            StorageError: the threads were stopped.
            Exception: what a call raised, of the first such item.
        """
        if not self._threads:
            return list(map(call, items))
        futures = [self.submit(partial(call, item)) for item in items]
        try:
            return [future.result() for future in futures]
        except BaseException as error:
            running = [future for future in futures if not future.cancel()]
            wait(running, None if isinstance(error, Exception) else INTERRUPT_SECONDS)
            if isinstance(error, CancelledError):
                raise StorageError("the files were closed while they were read: read them again") from None
            raise

    def end(self, seconds: float | None) -> bool:
        """Stops, and returns whether all threads have ended within `seconds`; None waits without limit.

        Without limit wait those whose calls write to what is used again: a call that hangs then holds up its caller.
        """
        self.stop()
        if _has_ended.is_set():  # the exit has waited; from Python 3.13 on, a daemon never ends from now on
            seconds = 0.0
        deadline = None if seconds is None else time.monotonic() + seconds
        for thread in self._threads:
            thread.join(None if deadline is None else max(0.0, deadline - time.monotonic()))
        if any(thread.is_alive() for thread in self._threads):
            return False
        _started.discard(self)
        return True

    def stop(self) -> None:
        """Cancels the calls that have not begun, and lets each thread end after its current call, without waiting."""
        self._is_stopped = True
        with suppress(Empty):
            while True:
                if entry := self._calls.get_nowait():
                    entry[0].cancel()
        for _ in self._threads:
            self._calls.put(None)

    def __enter__(self) -> Threads:
        return self

    def __exit__(self, *_: object) -> None:
        self.end(INTERRUPT_SECONDS)


def _serve(calls: _Calls) -> None:
    while (entry := calls.get()) is not None:
        future, call = entry
        if future.set_running_or_notify_cancel():
            try:
                future.set_result(call())
            except BaseException as error:
                future.set_exception(error)
        del entry, future, call  # a waiting thread keeps nothing of a finished batch alive


_started: set[Threads] = set()  # until all of their threads have ended
_left_open: weakref.WeakSet[Closeable] = weakref.WeakSet()
_is_exiting = Event()  # from here on, calls are cancelled
_has_ended = Event()  # the exit's wait for threads


def stay_at_exit() -> None:
    """Keeps a daemon in this call until the interpreter ends it, if the exit has begun; returns otherwise.

    Called where calls may have been cancelled: an error would reach the program, which has ended, as a traceback.
    """
    if _is_exiting.is_set() and current_thread() is not main_thread():
        Event().wait()


def close_at_exit(opened: Closeable) -> None:
    """Closes it when the interpreter ends, if it is alive: later its finalizer would find a module without names."""
    _left_open.add(opened)


@atexit.register
def _end_all() -> None:
    _is_exiting.set()
    left = list(_started)
    for threads in left:
        threads.stop()
    deadline = time.monotonic() + _EXIT_SECONDS
    for threads in left:
        threads.end(max(0.0, deadline - time.monotonic()))
    _has_ended.set()
    for opened in list(_left_open):
        with suppress(Exception):  # a generator that another thread runs, for example
            opened.close()


class SideBySide:
    """Threads that several threads use together, to read small files of slow storage: each takes several round trips.

    Files from memory are read by one thread at a time: more would take Python's lock from each other at each system
    call, which takes four times as long as the reads.
    """

    def __init__(self) -> None:
        self._lock, self._turn = Lock(), Lock()
        self._threads: Threads | None = None
        self._seconds = deque[float](maxlen=_LATEST)

    def each(self, read: Callable[[T], object], items: Iterable[T]) -> None:
        """Calls `read` for each item, by many threads once the latest have all taken long; raises as `Threads.each`."""
        waiting = iter(items)
        has_turn = self._turn.acquire(timeout=_TURN_SECONDS)
        try:
            for item in waiting:
                began = time.perf_counter()
                read(item)
                self._seconds.append(taken := time.perf_counter() - began)
                if taken > _SLOW_SECONDS and self._is_slow():
                    break
        finally:
            if has_turn:
                self._turn.release()
        if left := list(waiting):
            self._all_at_once(read, left)

    def _is_slow(self) -> bool:
        """Returns whether all of the latest reads were slow: on a busy node, some reads from memory are, too."""
        latest = list(self._seconds)
        return len(latest) == _LATEST and min(latest) > _SLOW_SECONDS

    def _all_at_once(self, read: Callable[[T], object], items: Sequence[T]) -> None:
        with self._lock:
            self._threads = threads = self._threads or Threads(_READERS, "dlio-files")
        step = _AT_ONCE if len(items) > _READERS else 1
        threads.each(
            lambda some: [read(item) for item in some],
            [items[start : start + step] for start in range(0, len(items), step)],
        )

    def close(self) -> None:
        """Ends the threads, but waits only a moment for a read that hangs; can be used again."""
        with self._lock:
            threads, self._threads = self._threads, None
        if threads is not None:
            threads.end(INTERRUPT_SECONDS)
