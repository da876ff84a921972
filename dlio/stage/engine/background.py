"""An agent as the process that fills: it keeps what it has room for, and serves as long as it is needed."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from dlio.cluster.launchers import job_name
from dlio.dataset.location import TREE
from dlio.dataset.shard import files_of
from dlio.errors import StorageError
from dlio.io import world
from dlio.io.filesystems import filesystem_of
from dlio.io.sizes import format_size
from dlio.stage.client.start import Task
from dlio.stage.copies import lease
from dlio.stage.copies.folder import StagedFolder
from dlio.stage.copies.live_folder import LiveFolder
from dlio.stage.copies.node_cache import make_room
from dlio.stage.engine.node import Node
from dlio.stage.meeting.peer import STUCK_SECONDS
from dlio.stage.planning.plan import Plan

_LOOK_SECONDS = 2.0  # between two checks of leases and folders
UNUSED_SECONDS = 10.0  # without a client
_FULL = 0.98  # of the remaining space, if it is not enough

_log = logging.getLogger(__name__)


class AgentStopped(BaseException):
    """The agent ends: nobody needs it, or, before its copy is complete, the next that claims the copy continues it."""


class Background:
    """Fills for loaders that come and go, until none needs the node any more; for one thread.

    Args:
        task: of the agent.
        say: called with "ready" once loaders can connect.
        log_to: sends what this process logs to a file.
        release: ends the claim on the copy; called once the copy is complete.

    Attributes:
        may_write: whether a thread of the node may still write, though it was ended.
    """

    is_hurried = False

    def __init__(
        self,
        task: Task,
        say: Callable[[str], None],
        log_to: Callable[[Path], None],
        release: Callable[[], None] = lambda: None,
    ) -> None:
        self._task, self._say, self._log_to, self._release = task, say, log_to, release
        self.may_write = False

    def fitted(self, plan: Plan, folder: StagedFolder) -> Plan:
        """Returns the plan with the bytes that this node may keep, after making room for what is missing of them."""
        live, problem = LiveFolder(folder), ""
        wanted = sum(file.num_bytes for file in plan.wanted)
        most = wanted if self._task.cache_bytes is None else self._task.cache_bytes
        here = live.present_bytes(files_of(plan.manifest.shards))
        try:
            make_room(folder, min(wanted, most) - here, plan.count(plan.wanted))
        except StorageError as error:
            if plan.manifest.format == TREE:  # nothing but the whole copy is of use
                raise
            free = filesystem_of(folder.dest).free_bytes + here
            problem = f"{error.text}: {format_size(free)} are kept, the rest is read from elsewhere"
            most = min(most, here + int((free - here) * _FULL))  # all that is here stays, at each start
        plan = replace(plan, room=max(most, 0))
        live.make()
        self._log_to(live.log)
        live.keep_task(replace(self._task, listed="").to_json())  # a later agent checks itself
        if problem:
            _log.warning("%s", problem)
        return plan

    def begin(self, node: Node) -> None:
        """Says that the node is ready."""
        _log.warning("%s is ready", node)
        self._say("ready")

    def until_complete(self, node: Node) -> None:
        """Returns once the whole copy is complete; raises AgentStopped if the agent must stop before."""
        while not (node.store.is_complete and node.plan.is_whole):
            self._tick(node, may_end=not node.plan.is_whole)

    def until_unneeded(self, node: Node) -> None:
        """Serves until nobody needs the node any more; raises AgentStopped then, or when the agent must stop."""
        LiveFolder(node.folder).remove_unfinished()
        self._release()
        while True:
            self._tick(node, may_end=True)

    def close(self, node: Node) -> None:
        """Ends the node."""
        self.may_write = not node.close()

    def _tick(self, node: Node, *, may_end: bool) -> None:
        if may_end or node.fill.settled.is_set():  # the latter without all files: a thread was interrupted
            world.sleep(_LOOK_SECONDS)
        elif node.fill.settled.wait(_LOOK_SECONDS):
            return
        node.tell()
        if _is_over(node) or _is_given_up(node) or (may_end and _is_unused(node)):
            node.is_needed = False
            raise AgentStopped


def _is_over(node: Node) -> bool:
    """Returns whether the copy has been removed, or the job has given it back."""
    if not node.is_ours:
        return True
    try:
        return bool(job_name()) and not lease.leases(node.folder)
    except OSError:
        return True


def _is_given_up(node: Node) -> bool:
    """Returns whether the copy cannot be completed, and no loader waits: a later one starts an agent again."""
    return node.peer().is_stuck and node.server.idle_seconds > STUCK_SECONDS


def _is_unused(node: Node) -> bool:
    if node.server.idle_seconds < UNUSED_SECONDS:
        return False
    if node.plan.is_whole and node.plan.manifest.node is None:
        return not (node.meeting and node.meeting.awaits_any(is_used=True))
    with suppress(OSError):
        return not lease.leases(node.folder)
    return True
