"""The agent: the process of a node that fills a copy in the background, serves it to loaders and other nodes, and ends.

`python -m dlio.stage.live.agent` reads its task from its standard input (start.py), and writes one line to its standard
output: "ready", or why it could not start. It ends when the copy is complete and nobody needs it, when the job's lease
is over, when the copy is removed, or by SIGTERM. Killed at any moment, it leaves files that the next one continues.
"""

from __future__ import annotations

import errno
import logging
import os
import resource
import shutil
import signal
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path

from dlio.errors import DlioError, StorageError
from dlio.io import files
from dlio.locking.claim import alone, claimed
from dlio.locking.claim_file import Claim
from dlio.stage.cache.folder import StagedFolder
from dlio.stage.cache.ownership import choosing_again, open_for_us
from dlio.stage.job import Job
from dlio.stage.live.agent.node import LetGo, Node
from dlio.stage.live.folder import LiveFolder
from dlio.stage.live.start import START_SECONDS, Task, serves, stager
from dlio.stage.planning.live import Plan

_POLL_SECONDS = 0.1

_log = logging.getLogger(__name__)


def work(task: Task, say: Callable[[str], None]) -> None:
    """Does a task, unless another agent does it.

    Args:
        task: what to do.
        say: called with "ready" once loaders can connect, or need not.

    Raises:
        DlioError: the agent cannot start.
    """
    with ExitStack() as stack:
        job, plan, folder, is_chosen = choosing_again(partial(_chosen, stack, task))
        if not is_chosen:
            say("ready")
            return
        with suppress(LetGo):
            _fill_and_serve(partial(_ready_node, task, job, plan, folder, say), job, plan, folder)


def _chosen(stack: ExitStack, task: Task) -> tuple[Job, Plan, StagedFolder, bool]:
    """Returns as `Task.prepared`, and whether this process is to be the agent."""
    job, plan, folder = task.prepared()
    open_for_us(folder)
    return job, plan, folder, _is_chosen(stack, folder, plan)


def _is_chosen(stack: ExitStack, folder: StagedFolder, plan: Plan) -> bool:
    """Returns whether this process is to be the agent, until the stack is left; else another one is ready.

    Another one that is ending is waited for, and so is one that itself waits for a plain `dlio stage`.

    Raises:
        StorageError: the other one is not ready in time.
    """
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            stack.enter_context(alone(folder.claims / "agent", f"agent for {folder.path}"))
            return True
        except StorageError as error:
            if error.errno != errno.EBUSY:
                raise
        if serves(folder, plan) is not None:
            return False
        if stager(folder) is not None:
            deadline = time.monotonic() + START_SECONDS
        if time.monotonic() > deadline:
            raise StorageError(f"another agent for {folder.path} is not ready after {START_SECONDS:g} s: see its log")
        time.sleep(_POLL_SECONDS)


def _ready_node(task: Task, job: Job, plan: Plan, folder: StagedFolder, say: Callable[[str], None]) -> Node:
    """Returns the node, which fetches and serves, after saying "ready"."""
    live = LiveFolder(folder)
    live.make()
    _log_to(live.log)
    node = Node(task, job, plan, folder)
    try:
        node.begin()
    except BaseException:
        node.close()
        raise
    say("ready")
    return node


def _fill_and_serve(ready: Callable[[], Node], job: Job, plan: Plan, folder: StagedFolder) -> None:
    """Fills the copy if it is not complete, then serves it while others need it; raises LetGo when it is to end."""
    node: Node | None = None
    try:
        with claimed(folder.claims, partial(folder.holds, plan.wanted)) as claim:
            if claim:
                take_over(folder, str(job.source), *claim)
                node = ready()
                try:
                    node.until_complete()
                    folder.finish(node.plan.manifest, node.kept_names, job.access(None))
                    node.publish()
                except BaseException:
                    ended, node = node, None
                    if not ended.close():  # a thread may still write: the claim is over when this process is
                        _exit(1)
                    raise
        node = node or ready()
        node.until_unused()
    finally:
        if node:
            node.close()


def _log_to(path: Path) -> None:
    """Sends what this process logs to a file."""
    with files.storage_errors("write", path):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
        os.dup2(descriptor, 2)
        os.close(descriptor)


def take_over(folder: StagedFolder, source: str, mine: Claim, previous: Claim | None) -> None:
    """Begins, or continues the last agent's files if that one is surely over and does not write any more."""
    if previous and not previous.is_over:
        shutil.rmtree(LiveFolder(folder).path, ignore_errors=True)
    folder.begin(source, mine, previous)


def main() -> None:
    """Runs an agent in a child of this process, which itself ends at once."""
    task = Task.from_json(sys.stdin.read())
    if os.fork():
        os._exit(0)
    said: list[str] = []

    def say(line: str) -> None:
        if not said:
            said.append(line)
            os.write(1, line.replace("\n", " ").encode() + b"\n")
            null = os.open(os.devnull, os.O_RDWR)
            os.dup2(null, 0)
            os.dup2(null, 1)

    signal.signal(signal.SIGTERM, signal.default_int_handler)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    logging.basicConfig(format="%(asctime)s %(message)s", level=logging.WARNING)
    code = 0
    try:
        work(task, say)
    except DlioError as error:
        _log.error("%s", error.text)
        say(error.text)
        code = error.exit_code
    except KeyboardInterrupt:
        _log.warning("ended by a signal; the next agent goes on")
    except Exception as error:
        _log.exception("the agent failed")
        say(f"{type(error).__name__}: {error}")
        code = 1
    _exit(code)


def _exit(code: int) -> None:
    """Ends this process though a thread may hang in a read of the source."""
    logging.shutdown()
    os._exit(code)


if __name__ == "__main__":
    main()
