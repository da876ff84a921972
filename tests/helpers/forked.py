"""Child processes that run a function of the test."""

from __future__ import annotations

import os
import signal
import time
import traceback
from collections.abc import Callable
from pathlib import Path


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
