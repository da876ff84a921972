"""A limit of operations and bytes a second, for machines that others use too, such as a cluster's login node.

An operation is a request to the file system: open, read, close, a look at a file, a listing. Before a reader asks the
source for something it takes what that costs, and sleeps until the limit allows it. What is not used is gone, so that
there are no bursts.
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
    """What may be asked of the source in a second; None is no limit.

    Attributes:
        operations: how many.
        num_bytes: how many bytes.
    """

    operations: float | None = None
    num_bytes: float | None = None

    def __post_init__(self) -> None:
        """Raises UsageError where a limit lets nothing through."""
        for limit in (self.operations, self.num_bytes):
            if limit is not None and not limit > 0:
                raise UsageError(f"a limit of operations or bytes a second is more than 0, found {limit!r}")

    def share(self, workers: int) -> Limits:
        """Returns the limits of one of so many workers, who together keep within these."""
        operations, num_bytes = (limit and limit / workers for limit in (self.operations, self.num_bytes))
        return Limits(operations, num_bytes)


NO_LIMITS = Limits()


class Pace:
    """Keeps within limits; safe for several threads."""

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
        self._free_at = clock()  # when all that was taken so far is within the limits

    def take(self, operations: int, num_bytes: int = 0) -> None:
        """Waits until so much may be asked for."""
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
    """Keeps what this thread reads, and the threads that read ahead for it, within limits."""
    token = _pace.set(None if limits == NO_LIMITS else Pace(limits))
    try:
        yield
    finally:
        _pace.reset(token)


def in_force() -> Pace | None:
    """Returns what keeps this thread within its limits; None where there are none."""
    return _pace.get()


def take(operations: int, num_bytes: int = 0) -> None:
    """Waits until the limits in force, if any, allow so many operations and bytes more."""
    pace = in_force()
    if pace is not None:
        pace.take(operations, num_bytes)


def bound(read: Callable[[int], T]) -> Callable[[int], T]:
    """Returns `read` for other threads: under the limits in force here."""
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
