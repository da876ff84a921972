"""Threads that can be abandoned: if one hangs on a dead disk, neither its consumer nor the interpreter waits for it."""

from __future__ import annotations

import atexit
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, TypeVar

T = TypeVar("T")
_EXIT_SECONDS = 5.0  # a part takes some 20 ms; one that takes longer at exit hangs

INTERRUPT_SECONDS = 1.0  # the most that an interrupt waits for a thread that hangs

_Call = tuple[Future[Any], Callable[[], Any]]
_Calls = SimpleQueue[_Call | None]


class Threads:
    """A number of threads that call functions, in the order in which these are submitted; used by one thread.

    They are daemons, since the interpreter would wait for other threads without end. But a daemon stopped in compiled
    code may crash the exit, so an exit handler first ends the threads that are left, and waits some seconds for them.
    """

    def __init__(self, count: int, name: str) -> None:
        """Starts `count` threads, each called `name`."""
        self._calls: _Calls = SimpleQueue()
        self._name = name
        self._threads: list[Thread] = []
        _started.add(self)
        self.grow(count)

    def grow(self, count: int) -> None:
        """Starts threads until there are `count`."""
        while len(self._threads) < count:
            thread = Thread(target=_serve, args=(self._calls,), name=self._name, daemon=True)
            thread.start()
            self._threads.append(thread)

    def submit(self, call: Callable[[], T]) -> Future[T]:
        """Returns the future result of `call`, which the next free thread calls."""
        future: Future[T] = Future()
        self._calls.put((future, call))
        return future

    def end(self, seconds: float | None) -> bool:
        """Stops, and returns whether all threads have ended within `seconds`; None waits without limit."""
        self.stop()
        if sys.is_finalizing():  # `_end_all` has waited; from Python 3.13 on, a daemon never ends from now on
            seconds = 0.0
        deadline = None if seconds is None else time.monotonic() + seconds
        for thread in self._threads:
            thread.join(None if deadline is None else max(0.0, deadline - time.monotonic()))
        if any(thread.is_alive() for thread in self._threads):
            return False
        _started.discard(self)
        return True

    def stop(self) -> None:
        """Drops the calls that have not begun, and lets each thread end after its current call, without waiting."""
        with suppress(Empty):
            while True:
                self._calls.get_nowait()
        for _ in self._threads:
            self._calls.put(None)


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


@atexit.register
def _end_all() -> None:
    left = list(_started)
    for threads in left:
        threads.stop()
    deadline = time.monotonic() + _EXIT_SECONDS
    for threads in left:
        threads.end(max(0.0, deadline - time.monotonic()))
