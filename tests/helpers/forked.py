"""Child processes that run a function of the test."""

from __future__ import annotations

import itertools
import os
import signal
import time
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any


def wait_for(path: Path) -> None:
    """Returns once another process has made the file."""
    while not path.exists():
        time.sleep(0.005)


class Forked:
    """A child process that runs a function; the test waits for it or kills it."""

    def __init__(self, function: Callable[[], object]) -> None:
        self.pid = os.fork()
        if self.pid == 0:
            try:
                function()
                os._exit(0)
            except BaseException:
                traceback.print_exc()
                os._exit(1)

    def kill(self) -> None:
        """Kills it at once, as a crash would."""
        os.kill(self.pid, signal.SIGKILL)
        self.wait()

    def wait(self) -> int:
        """Returns its exit code."""
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


#: The names under which Python makes a system call.
_CALLS = {"fsync": ("fsync",), "linkat": ("link",), "rename": ("rename", "replace"), "unlink": ("unlink", "remove")}


def run_until(call: str, when: int, function: Callable[[], object]) -> int:
    """Runs a function in a process that is killed as it makes a system call for the `when`-th time.

    Returns its exit code: minus SIGKILL, unless it ended before.
    """

    def run() -> None:
        left = itertools.count(when - 1, -1)
        for name in _CALLS[call]:
            setattr(os, name, partial(_call, left, getattr(os, name)))
        function()

    return Forked(run).wait()


def _call(left: Iterator[int], function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    if not next(left):
        os.kill(os.getpid(), signal.SIGKILL)
    return function(*arguments, **options)
