"""The agent: the process of a node that fills a copy in the background, serves it to loaders and other nodes, and ends.

`python -m dlio.stage.engine` reads its task from its standard input (start.py), and writes one line to its standard
output: "ready", or why it could not start. It ends when the copy is complete and nobody needs it, when the job's lease
is over, when the copy is removed, or by SIGTERM. Killed at any moment, it leaves files that the next one continues.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path

from dlio.errors import DlioError, MissingError, StorageError
from dlio.io import files, limits, world
from dlio.locking.claim import claimed
from dlio.stage.client import launch
from dlio.stage.client.start import START_SECONDS, Task, is_served
from dlio.stage.copies.folder import StagedFolder
from dlio.stage.copies.live_folder import LiveFolder
from dlio.stage.copies.locations import check_safe, in_folder_for_us
from dlio.stage.copies.node_cache import give_way
from dlio.stage.engine.background import AgentStopped, Background
from dlio.stage.engine.complete import carry_out
from dlio.stage.planning.job import Job
from dlio.stage.planning.plan import Plan

_log = logging.getLogger(__name__)


def work(task: Task, say: Callable[[str], None]) -> None:
    """Does a task, unless another process fills and serves the copy.

    Args:
        task: what to do.
        say: called with "ready" once loaders can connect, or need not.

    Raises:
        DlioError: the agent cannot start.
    """
    job, plan, copy = task.planned()
    with suppress(AgentStopped):
        in_folder_for_us(job.dest, copy, plan.wanted, partial(_fill, task, say, job, plan))


def _fill(task: Task, say: Callable[[str], None], job: Job, plan: Plan, folder: StagedFolder) -> None:
    with ExitStack() as stack:
        claims = stack.enter_context(claimed(folder.claims, _is_served(folder, plan), give_way=give_way(folder)))
        if claims is None:
            check_safe(folder)
            say("ready")
            return
        background = Background(task, say, _log_to, stack.close)
        try:
            carry_out(job, plan, folder, claims, background)
        except BaseException:
            if background.may_write:  # the claim is over when this process is
                _exit(1)
            raise


def _is_served(folder: StagedFolder, plan: Plan) -> Callable[[], bool]:
    """Returns a check that another process serves the copy, which raises StorageError if none does for long."""
    deadline = world.monotonic() + START_SECONDS

    def look() -> bool:
        if is_served(folder, plan):
            return True
        if world.monotonic() > deadline:
            raise StorageError(
                f"another process that fills {folder.path} is not ready after {START_SECONDS:g} s: see "
                f"{LiveFolder(folder).log}"
            )
        return False

    return look


def _log_to(path: Path) -> None:
    """Sends what this process logs to a file."""
    with files.storage_errors("write", path):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
        os.dup2(descriptor, 2)
        os.close(descriptor)


def main() -> None:
    """Runs an agent in a child of this process, which itself ends at once."""
    task, said = Task.from_json(sys.stdin.read()), list[str]()
    sys.path += [each for each in task.modules if each not in sys.path]  # last, so that they hide nothing

    def say(line: str) -> None:
        if not said:
            said.append(line)
            with suppress(BrokenPipeError):  # who started it was interrupted: it fills the copy nevertheless
                os.write(1, line.replace("\n", " ").encode() + b"\n")
            null = os.open(os.devnull, os.O_RDWR)
            os.dup2(null, 0)
            os.dup2(null, 1)

    try:
        with limits.starting("its process"):
            if os.fork():
                os._exit(0)
    except MissingError as error:
        say(launch.told(error))
        _exit(error.exit_code)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    limits.allow_open_files()
    logging.basicConfig(format="%(asctime)s %(message)s", level=logging.WARNING)
    code = 0
    try:
        work(task, say)
    except DlioError as error:
        _log.error("%s", error.text)
        say(launch.told(error))
        code = error.exit_code
    except KeyboardInterrupt:
        _log.warning("ended by a signal; the next agent continues")
    except Exception as error:
        _log.exception("the agent failed")
        say(launch.told(error))
        code = 1
    _exit(code)


def _exit(code: int) -> None:
    """Ends this process though a thread may hang in a read of the source."""
    logging.shutdown()
    os._exit(code)


if __name__ == "__main__":
    main()
