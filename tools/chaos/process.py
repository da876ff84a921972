"""Processes that an act starts: each the first of its own session, with its output in a file, and a known end."""

from __future__ import annotations

import ctypes
import faulthandler
import importlib
import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Callable, Container, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import dlio.cli
from dlio.errors import EXIT_INTERRUPTED
from tools.chaos.violation import Violation

MARK = "CHAOS_SCENE"  # in the environment of all processes of a scene, in any session
Command = Sequence[str] | Callable[[], object]
DLIO = [sys.executable, "-m", "dlio"]
# Frameworks start threads, which do not survive a fork.
_LEFT_OUT = ("dlio.__main__", "dlio.loaders", "dlio.executors.")
_PR_SET_PDEATHSIG = 1
_HELD = (signal.SIGINT, signal.SIGTERM)  # until the new process runs its own code
_POLL_SECONDS = 0.005
_TAIL = 1500
ENDS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)


class Process:
    """A started command; `code` is its exit code once it has ended, or minus the signal that ended it.

    Args:
        words: the command, or a function; one that begins with "dlio" runs in a fork of this process, which saves its
            start.
        log: the file that takes both its outputs.
        user: who runs it.
        environ: its whole environment.
    """

    def __init__(self, words: Command, log: Path, user: int, environ: Mapping[str, str]) -> None:
        self.name = getattr(words, "func", words).__name__ if callable(words) else " ".join(words)
        self.log, self.user = log, user
        self.sent: set[int] = set()
        self.code: int | None = None
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        sys.stdout.flush()
        signal.pthread_sigmask(signal.SIG_BLOCK, _HELD)
        self.pid = os.fork()
        if not self.pid:
            _become(words, descriptor, user, environ)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _HELD)
        os.close(descriptor)

    def __str__(self) -> str:
        return f"process {self.pid} (user {self.user}): {self.name}"

    def has_ended(self) -> bool:
        """Returns whether it has ended, and knows its exit code from then on."""
        if self.code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.code = os.waitstatus_to_exitcode(status) if pid else None
        return self.code is not None

    def send(self, number: int) -> None:
        """Sends it a signal, if it still runs."""
        if not self.has_ended():
            self.sent.add(number)
            os.kill(self.pid, number)

    def strike(self, choose: random.Random, within: float, signals: Sequence[int] = ENDS) -> None:
        """Sends one of some signals at a random moment of the next seconds."""
        deadline, number = time.monotonic() + choose.uniform(0, within), choose.choice(signals)
        while time.monotonic() < deadline and not self.has_ended():
            time.sleep(_POLL_SECONDS)
        self.send(number)

    def wait(self, seconds: float) -> int:
        """Returns its exit code; one that runs longer shows its stacks, and is killed with its session.

        Raises:
            Violation: it did not end in that time, or not as dlio ends.
        """
        deadline = time.monotonic() + seconds
        while not self.has_ended():
            if time.monotonic() > deadline:
                self._show_stacks()
                raise Violation(f"{self} should have ended within {seconds:.0f} s{self.tail()}")
            time.sleep(_POLL_SECONDS)
        assert self.code is not None
        return self.code

    def _show_stacks(self) -> None:
        os.kill(self.pid, signal.SIGABRT)  # faulthandler prints them
        time.sleep(1)
        self.end()

    def end(self) -> None:
        """Kills whatever is left of its session."""
        kill([*([] if self.has_ended() else [self.pid]), *members([self.pid])])
        while not self.has_ended():
            time.sleep(_POLL_SECONDS)

    def said(self) -> str:
        """Returns what it has written so far."""
        return self.log.read_text(errors="replace")

    def tail(self) -> str:
        """Returns the end of what it wrote, for a message."""
        return "".join(f"\n      | {line}" for line in self.said()[-_TAIL:].splitlines())


def members(sessions: Container[int], mark: str = "") -> list[int]:
    """Returns the processes, zombies excepted, of these sessions, and those that have inherited MARK as this mark."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            state, _, _, session = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()[:4]
            marked = bool(mark) and f"{MARK}={mark}".encode() in (folder / "environ").read_bytes().split(b"\0")
        except OSError:
            continue  # it has ended by now, or is another user's
        if state not in "ZX" and (int(session) in sessions or marked):
            found.append(int(folder.name))
    return found


def kill(pids: Sequence[int]) -> None:
    """Kills processes, as far as they still run."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _become(words: Command, descriptor: int, user: int, environ: Mapping[str, str]) -> None:
    """Turns this forked process into the command; does not return."""
    code = 70  # as sysexits.h has it: our own fault
    try:
        os.setsid()
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        os.environ.clear()
        os.environ.update(environ)
        if user:
            os.setgroups([])
            os.setgid(user)
            os.setuid(user)
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        is_dlio = not callable(words) and words[0] == "dlio"  # which lets interrupts in itself; see `dlio.__main__`
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM} if is_dlio else _HELD)
        code = _run(words, environ)
    except KeyboardInterrupt:
        code = EXIT_INTERRUPTED
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def load_dlio() -> None:
    """Imports the modules that the forks may need: another user may be unable to read this interpreter's modules."""
    root = Path(dlio.__file__).parent
    for path in sorted(root.rglob("*.py")):
        name = ".".join(("dlio", *path.relative_to(root).with_suffix("").parts)).removesuffix(".__init__")
        if not name.startswith(_LEFT_OUT):
            with suppress(ImportError):
                importlib.import_module(name)


def _run(words: Command, environ: Mapping[str, str]) -> int:
    faulthandler.enable(sys.__stderr__)
    try:
        if callable(words):
            words()
            return 0
        if words[0] != "dlio":
            os.execvpe(words[0], list(words), dict(environ))
        return dlio.cli.main(list(words[1:]))
    except SystemExit as left:
        return int(left.code or 0)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
