"""Limits: dlio's own on the memory that one input may take, and the system's: of cores, and those that errors run into.

An input may be hostile: a server whose answer never ends, a zip that inflates to a thousand times its size, a sparse
file without content. Each limit is far beyond the needs of real data sets, and an environment variable raises it.

The system says "can't start new thread" or "Too many open files", and not which limit that was.
"""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dlio.errors import MissingError, UsageError
from dlio.io.sizes import format_size, parse_size

_DEFAULTS = {
    "DLIO_MAX_MANIFEST": "256MiB",  # lists half a million shards
    "DLIO_MAX_SAMPLE": "1GiB",  # twice the pixels of the largest image that is decoded
}


def manifest_bytes() -> int:
    """Returns the most bytes that a manifest may have; raises UsageError if DLIO_MAX_MANIFEST is not a size."""
    return _limit("DLIO_MAX_MANIFEST")


def sample_bytes() -> int:
    """Returns the most bytes that an encoded image may have; raises UsageError if DLIO_MAX_SAMPLE is not a size."""
    return _limit("DLIO_MAX_SAMPLE")


def _limit(variable: str) -> int:
    try:
        return parse_size(os.environ.get(variable) or _DEFAULTS[variable])
    except UsageError as error:
        raise UsageError(f"{variable}: {error}") from None


@contextmanager
def starting(what: str) -> Iterator[None]:
    """Raises MissingError, which names the limit, if a thread or process cannot be started."""
    try:
        yield
    except (RuntimeError, OSError, MemoryError) as error:
        limit = reached(error)
        if limit is None:
            raise
        raise MissingError(f"cannot start {what}: {limit}") from error


def allow_open_files() -> None:
    """Lets this process open as many files as its hard limit allows: many nodes connect to one that passes files on."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def reached(error: BaseException) -> str | None:
    """Returns which limit of the system an error comes from, and what to do; None if it comes from no limit."""
    number = error.errno if isinstance(error, OSError) else None
    if isinstance(error, MemoryError) or number == errno.ENOMEM:
        return _memory()
    if number == errno.EMFILE:
        return f"this process may open {_soft(resource.RLIMIT_NOFILE)} files (ulimit -n): raise the limit"
    if number == errno.ENFILE:
        return "all processes of this machine may open no more files (fs.file-max): end some"
    if isinstance(error, RuntimeError) and str(error) == "can't start new thread":
        return _memory() if _lacks_addresses() else _processes()
    return _processes() if number == errno.EAGAIN else None


def _soft(kind: int) -> int:
    """Returns a limit of this process; -1 for none."""
    return resource.getrlimit(kind)[0]


def _used_bytes() -> int:
    """Returns the memory that this process addresses, used or not; see proc(5)."""
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def _lacks_addresses() -> bool:
    """Returns whether no stack of a new thread fits into the memory that this process may address."""
    import threading  # it is there if a thread was to be started; dlio starts without it

    limit, stack = _soft(resource.RLIMIT_AS), threading.stack_size() or _soft(resource.RLIMIT_STACK)
    return 0 <= limit < _used_bytes() + max(0, stack)


def _memory() -> str:
    if (limit := _soft(resource.RLIMIT_AS)) < 0:
        return "the machine, or this job or container, is out of memory: give it more, or use fewer workers"
    return (
        f"this process addresses {format_size(_used_bytes())} of memory and may address {format_size(limit)} "
        "(ulimit -v): raise the limit, or use fewer threads"
    )


def _processes() -> str:
    limit = _soft(resource.RLIMIT_NPROC)
    own = f"user {os.getuid()} may run {limit} threads and processes (ulimit -u)" if limit >= 0 else "there is a limit"
    return f"{own}, a job or container perhaps fewer (pids.max of its cgroup): raise the limit, or use fewer"


def num_usable_cores() -> int:
    """Returns how many cores this process may use: those of its affinity mask, bounded by the control group's quota."""
    cores = len(os.sched_getaffinity(0))
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
    except (OSError, ValueError):  # no control groups of version 2, or this process is in the root group
        return cores
    return cores if quota == "max" else max(1, min(cores, int(quota) // int(period)))
