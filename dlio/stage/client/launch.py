"""The process of an agent, started again if it is killed before it is ready.

It has its own session, and outlives the process that started it. It reads its task from its standard input, since
arguments are seen by all users, and a URL may hold a password.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from dlio.errors import DlioError, StorageError
from dlio.io import files, limits, trace, world

_PAUSES = (0.0, 0.5, 2.0)  # before each try: whatever has killed one may be over
_SAID_BYTES = 4096  # of an agent that could not start; the last line is shown

_log = logging.getLogger(__name__)


def agent(task: str, log: Path) -> None:
    """Starts an agent with a task, and returns once it is ready, or another one is.

    Raises StorageError if it could not start, or each of several ended before it was ready; names the log.
    """
    name = f"the agent on {world.host()}"
    for pause in _PAUSES:
        world.sleep(pause)
        answer, last = _begun(task)
        if answer == "ready":
            return
        if answer:
            number, _, text = answer.partition(" ")
            if number.isdecimal() and int(number):
                raise StorageError(int(number), f"{name}: {text}")
            raise StorageError(f"{name}: {text if number == '0' else answer}")  # some other module may have said it
        _log.warning("%s ended before it was ready%s", name, last)
    problem = f"it ended before it was ready, {len(_PAUSES)} times{last}"
    raise StorageError(f"{name}: {problem}: see {log}, and whether the system kills processes for lack of memory")


def told(error: Exception) -> str:
    """Returns what an agent answers that could not start: the system's number of the error, 0 if none, and its text."""
    text = error.text if isinstance(error, DlioError) else f"{type(error).__name__}: {error}"
    return f"{getattr(error, 'errno', None) or 0} {text}"


def _environ() -> dict[str, str]:
    """Returns the variables of an agent, which runs in another folder."""
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONWARNINGS"}
    file = environ.get(trace.VARIABLE)
    return environ | ({trace.VARIABLE: str(Path(file).absolute())} if file else {})


def _begun(task: str) -> tuple[str, str]:
    """Starts an agent, and returns its answer, "" if it ended without one; and how what it said to its end ended."""
    command = [sys.executable, "-m", "dlio.stage.engine"]
    with (
        open(os.memfd_create("dlio-agent"), "r+b", buffering=0) as said,  # noqa: PTH123  until it writes its own log
        files.storage_errors("run", Path(sys.executable)),  # a user may not be able to, where root has started this
        limits.starting("an agent"),
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said, env=_environ(),
            start_new_session=True, cwd="/",
        ) as process,
    ):  # fmt: skip
        assert process.stdin is not None
        assert process.stdout is not None
        with suppress(BrokenPipeError):  # it has ended
            process.stdin.write(task.encode())
            process.stdin.close()
        answer = process.stdout.readline().decode().strip()
        size = os.fstat(said.fileno()).st_size
        output = os.pread(said.fileno(), _SAID_BYTES, max(0, size - _SAID_BYTES)).decode(errors="replace").strip()
    return answer, f" ({output.splitlines()[-1]})" if output else ""
