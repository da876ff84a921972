"""Limits of operations and bytes a second, for machines shared with others, such as a cluster's login node.

An operation is a request to the file system: open, read, close, stat, list. Before each request, a
reader takes the cost of the request, and sleeps until the limits allow it. Unused capacity expires, so there are no
bursts.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import wraps
from typing import TypeVar

from dlio.errors import UsageError

T = TypeVar("T")
FILE_OPERATIONS = 3  # a file is opened, read and closed


@dataclass(frozen=True, slots=True)
class Limits:
    """The most operations and bytes a second on the source; None for unlimited."""

    operations: float | None = None
    num_bytes: float | None = None

    def __post_init__(self) -> None:
        """Raises UsageError if a limit is not positive."""
        for limit in (self.operations, self.num_bytes):
            if limit is not None and not limit > 0:
                raise UsageError(f"a limit of operations or bytes a second must be more than 0, found {limit!r}")

    def share(self, workers: int) -> Limits:
        """Returns the limits of one worker, so that all `workers` together keep these limits."""
        operations, num_bytes = (limit and limit / workers for limit in (self.operations, self.num_bytes))
        return Limits(operations, num_bytes)


NO_LIMITS = Limits()


class Pace:
    """Waits so that requests stay within limits; safe for several threads."""

    def __init__(
        self,
        limits: Limits,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._limits = limits
        self._clock = clock
        self._sleep = sleep
        self._lock = threading.Lock()
        self._free_at = clock()  # the time from which on all that was taken is within the limits

    def spend(self, operations: int, num_bytes: int = 0) -> None:
        """Waits until the limits allow this many operations and bytes."""
        with self._lock:
            now = self._clock()
            begins = max(self._free_at, now)
            self._free_at = begins + max(
                operations / (self._limits.operations or float("inf")),
                num_bytes / (self._limits.num_bytes or float("inf")),
            )
            wait = begins - now
        if wait > 0:
            self._sleep(wait)


_pace: ContextVar[Pace | None] = ContextVar("pace", default=None)


@contextmanager
def limited(limits: Limits) -> Generator[None, None, None]:
    """Keeps the reads of this thread, and of the threads that prefetch for it, within limits."""
    token = _pace.set(None if limits == NO_LIMITS else Pace(limits))
    try:
        yield
    finally:
        _pace.reset(token)


def is_limited() -> bool:
    """Returns whether this thread has limits."""
    return _pace.get() is not None


def spend(operations: int, num_bytes: int = 0) -> None:
    """Waits until the limits of this thread, if any, allow this many operations and bytes."""
    pace = _pace.get()
    if pace is not None:
        pace.spend(operations, num_bytes)


def bound(read: Callable[[int], T]) -> Callable[[int], T]:
    """Returns `read` for other threads, under the limits of this thread."""
    pace = _pace.get()
    if pace is None:
        return read

    @wraps(read)
    def limited_read(number: int) -> T:
        token = _pace.set(pace)
        try:
            return read(number)
        finally:
            _pace.reset(token)

    return limited_read
