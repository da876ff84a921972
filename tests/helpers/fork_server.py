"""A process that has imported some packages, and forks for each script that needs them: an import takes seconds.

Run as `fork_server.py MODULE...`, it imports the modules and reads jobs, a JSON object on each line: a script, its
arguments, its environment, and a folder for its output, `said`, its session, and its exit code, `ended`.
"""

from __future__ import annotations

import atexit
import importlib
import json
import os
import runpy
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]


class Job:
    """A running script, used as a Popen."""

    def __init__(self, server: subprocess.Popen[str], folder: Path) -> None:
        self._server, self._folder = server, folder

    def poll(self) -> int | None:
        """Returns the exit code once the script has ended; minus the signal that ended it."""
        assert self._server.poll() is None
        return int((self._folder / "ended").read_text()) if (self._folder / "ended").exists() else None

    def kill(self) -> None:
        """Kills the script and what it has started, if that runs."""
        while not (self._folder / "session").exists():
            assert self._server.poll() is None
            time.sleep(0.01)
        with suppress(ProcessLookupError):
            os.killpg(int((self._folder / "session").read_text()), signal.SIGKILL)

    def communicate(self, timeout: float = 280) -> tuple[str, str]:
        """Waits for the end, and returns the script's output."""
        deadline = time.monotonic() + timeout
        while self.poll() is None:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        return self.said(), ""

    def said(self) -> str:
        """Returns the script's output so far."""
        path = self._folder / "said"
        return path.read_text() if path.exists() else ""  # it was killed before it began


def start(
    modules: tuple[str, ...], script: Path, arguments: list[str], folder: Path, environ: Mapping[str, str]
) -> Job:
    """Starts a script in a fork of a process that has these modules, in its own folder."""
    server = _server(modules)
    assert server.stdin is not None
    job = {"script": str(script), "arguments": arguments, "folder": str(folder), "environ": {**environ}}
    server.stdin.write(json.dumps(job) + "\n")
    server.stdin.flush()
    return Job(server, folder)


@cache
def _server(modules: tuple[str, ...]) -> subprocess.Popen[str]:
    """Returns the process with these modules, one for a test session."""
    command = [sys.executable, __file__, *modules]
    environ = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    server = subprocess.Popen(command, stdin=subprocess.PIPE, text=True, cwd=ROOT, env=environ)
    atexit.register(server.communicate)  # it ends with its input
    return server


def _watch(folder: str, **job: object) -> None:
    """Runs a job in its own process, and leaves its exit code."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    child = os.fork()
    if child == 0:
        _run(folder, **job)  # type: ignore[arg-type]
    _leave(folder, "session", child)
    _leave(folder, "ended", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


def _leave(folder: str, name: str, number: int) -> None:
    """Writes a file, whole or not at all."""
    Path(folder, f".{name}").write_text(str(number))
    Path(folder, f".{name}").rename(Path(folder, name))


def _run(folder: str, script: str, arguments: list[str], environ: dict[str, str]) -> None:
    """Becomes the script; it ends without the end of the interpreter, which takes a second with torch in it."""
    os.setsid()
    said = os.open(f"{folder}/said", os.O_WRONLY | os.O_CREAT)
    for descriptor, copy in ((os.open(os.devnull, os.O_RDONLY), 0), (said, 1), (said, 2)):
        os.dup2(descriptor, copy)
    os.environ.clear()
    os.environ.update(environ)
    sys.argv = [script, *arguments]
    code = 1
    try:
        runpy.run_path(script, run_name="__main__")
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        importlib.import_module(name)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # so that jobs leave no zombies
    for line in sys.stdin:
        if os.fork() == 0:
            _watch(**json.loads(line))
            os._exit(0)
