"""Small files of slow storage, read side by side: each takes several round trips to its server."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from dlio.io.threads import INTERRUPT_SECONDS, Threads

_THREADS = 64
_SLOW_SECONDS = 0.0002  # for one file: from memory it takes 20 us, from a disk 100, from a server 300 and more
_TURN_SECONDS = 1.0  # a read may hang
_LATEST = 4  # reads
_AT_ONCE = 2  # files that a thread reads in a row, if there are more than threads

T = TypeVar("T")


class SideBySide:
    """Threads that several threads use together.

    Files from memory are read by one thread at a time: more would take Python's lock from each other at each system
    call, which takes four times as long as the reads.
    """

    def __init__(self) -> None:
        self._lock, self._turn = threading.Lock(), threading.Lock()
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
            self._threads = threads = self._threads or Threads(_THREADS, "dlio-files")
        step = _AT_ONCE if len(items) > _THREADS else 1
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
