"""Spans of time in a file for Perfetto: which thread reads, decodes, waits or stages, and when.

    DLIO_TRACE=trace-%h.json python train.py      and open the files at ui.perfetto.dev

In the name `%h` becomes the host and `%p` the process. The file is Chrome's trace format ("Trace Event Format", the
JSON array): a `[`, then an event in each line. The array's end may be missing, so a killed process leaves a good file.
Each event is appended whole by one write, so the processes of a machine may share a file. Where several machines see
the file, give each its own by `%h`: not every network file system appends for several at once.

Off, a span costs a comparison. On, it costs a write of some 150 bytes.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import stat
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

VARIABLE = "DLIO_TRACE"
_OFF: AbstractContextManager[None] = nullcontext()
_BEFORE_CLOCK_NS = time.time_ns() - time.perf_counter_ns()  # spans of several machines are told by the time of day
_log = logging.getLogger(__name__)


class TraceFile:
    """Appends events to a file; safe for several threads and processes, and across fork."""

    def __init__(self, path: str) -> None:
        """Makes the file if it does not exist.

        Raises:
            OSError: it cannot be made or opened.
        """
        self.path = Path(path.replace("%h", socket.gethostname()).replace("%p", str(os.getpid())))
        self._named: set[tuple[int, int]] = set()  # processes and threads whose names are in the file
        _begin(self.path)
        self._descriptor = _own(self.path)

    def add(self, name: str, began: float, ended: float, kind: str, about: str) -> None:
        """Appends a span of this thread; times as by `time.perf_counter`."""
        pid, tid = os.getpid(), threading.get_native_id()
        events = [] if (pid, tid) in self._named else self._names(pid, tid)
        start = round(began * 1e6 + _BEFORE_CLOCK_NS / 1e3, 1)
        span = {"name": name, "cat": kind, "ph": "X", "ts": start, "dur": round((ended - began) * 1e6, 1)}
        events.append(span | {"pid": pid, "tid": tid} | ({"args": {"of": about}} if about else {}))
        os.write(self._descriptor, b"".join(json.dumps(event).encode() + b",\n" for event in events))

    def _names(self, pid: int, tid: int) -> list[dict[str, object]]:
        self._named.add((pid, tid))
        names = {"process_name": f"{socket.gethostname()}: {Path(sys.argv[0]).name}"}
        names["thread_name"] = threading.current_thread().name
        event = {"ph": "M", "pid": pid, "tid": tid}
        return [event | {"name": name, "args": {"name": value}} for name, value in names.items()]

    def close(self) -> None:
        """Closes the file."""
        os.close(self._descriptor)


def _begin(path: Path) -> None:
    """Makes the file with its bracket, in one step, so that no other process appends before the bracket."""
    aside = path.with_name(f"{path.name}.{os.urandom(8).hex()}")  # no name to plant a link under
    try:
        with open(aside, "xb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
            file.write(b"[\n")
        os.link(aside, path)
    except FileExistsError:  # made by another process
        return
    finally:
        aside.unlink(missing_ok=True)


def _own(path: Path) -> int:
    """Opens a file of this user to append to, and neither follows a link nor waits for a pipe's reader."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
        os.close(descriptor)
        raise OSError("it is not a regular file of this user: remove it, or choose another name")
    return descriptor


def _opened(path: str) -> TraceFile | None:
    try:
        return TraceFile(path) if path else None
    except OSError as error:
        _log.warning("%s=%s: no trace is written: %s", VARIABLE, path, error)
        return None


_file = _opened(os.environ.get(VARIABLE, ""))


def add(name: str, began: float, ended: float, kind: str = "load", about: str = "") -> None:
    """Notes a span of this thread, if there is a trace; times as by `time.perf_counter`."""
    global _file
    if _file is None:
        return
    try:
        _file.add(name, began, ended, kind, about)
    except OSError as error:
        _log.warning("%s: the trace ends here: %s", _file.path, error)
        _file = None


def span(name: str, kind: str = "load", about: str = "") -> AbstractContextManager[None]:
    """Returns a context that notes its duration, if there is a trace.

    Args:
        name: what is done, such as "read".
        kind: "load" or "stage".
        about: what it is done with, such as a file's name.
    """
    return _OFF if _file is None else _measured(name, kind, about)


@contextmanager
def _measured(name: str, kind: str, about: str) -> Iterator[None]:
    began = time.perf_counter()
    try:
        yield
    finally:
        add(name, began, time.perf_counter(), kind, about)


def each(items: Iterator[T], name: str, kind: str, about: str = "") -> Iterator[T]:
    """Yields the items, and notes how long each took to come, if there is a trace."""
    return items if _file is None else _each(items, name, kind, about)


def _each(items: Iterator[T], name: str, kind: str, about: str) -> Iterator[T]:
    while True:
        with span(name, kind, about):
            item = next(items, None)
        if item is None:
            return
        yield item
