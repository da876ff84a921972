"""The limits of one input: 512 MB of memory and 10 s of a processor."""

from __future__ import annotations

import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MEMORY_BYTES = 512 * 10**6
SECONDS = 10


class TooSlow(BaseException):
    """An input took more than `SECONDS`; not an Exception, which dlio might mistake for a library's."""


def limit_memory() -> None:
    """Limits this process to `MEMORY_BYTES` more memory than it has now: more is a MemoryError."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


@contextmanager
def limited_time() -> Iterator[None]:
    """Raises TooSlow if the block takes more than `SECONDS` of processor time, whatever else the machine does."""

    def stop(*_: object) -> None:
        raise TooSlow(f"more than {SECONDS} s")

    signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
