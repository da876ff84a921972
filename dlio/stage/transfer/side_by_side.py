"""Small files of slow storage, read side by side: each takes several round trips to its server."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from itertools import islice
from typing import TypeVar

from dlio.io.threads import Threads

_THREADS = 64
_SLOW_SECONDS = 0.0005  # for one file: from memory it takes 50 us, from a server 300 and more
_LOOKED_AT = 4  # files, before threads read the others
_AT_ONCE = 2  # files that a thread reads in a row, if there are more than threads

T = TypeVar("T")


class SideBySide:
    """Threads that several threads use together."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._threads: Threads | None = None

    def each(self, read: Callable[[T], object], items: Iterable[T]) -> None:
        """Calls `read` for each item, by many threads once one of the first has taken long; raises what it raises."""
        waiting, is_slow = iter(items), False
        for item in islice(waiting, _LOOKED_AT):
            began = time.perf_counter()
            read(item)
            if time.perf_counter() - began > _SLOW_SECONDS:
                is_slow = True
                break
        if not is_slow:
            for item in waiting:
                read(item)
            return
        with self._lock:
            self._threads = self._threads or Threads(_THREADS, "dlio-files")
        left = list(waiting)
        step = _AT_ONCE if len(left) > _THREADS else 1
        self._threads.each(
            lambda some: [read(item) for item in some],
            [left[start : start + step] for start in range(0, len(left), step)],
        )

    def close(self) -> None:
        """Ends the threads; can be used again."""
        with self._lock:
            threads, self._threads = self._threads, None
        if threads is not None:
            threads.end(None)
