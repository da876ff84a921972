"""A `dlio stage` as the process that fills: what it shows of all nodes of a job, and when it may leave the others."""

from __future__ import annotations

import logging
from contextlib import closing
from dataclasses import replace

from dlio.cluster import liveness
from dlio.errors import StorageError, UsageError
from dlio.io import world
from dlio.stage.copies.folder import StagedFolder
from dlio.stage.copies.live_folder import LiveFolder
from dlio.stage.copies.node_cache import make_room
from dlio.stage.engine.failures import ADVICE
from dlio.stage.engine.node import Node
from dlio.stage.meeting.folder import SHOWN, MeetingFolder, meeting_folder
from dlio.stage.meeting.meeting import Meeting
from dlio.stage.meeting.peer import Peer
from dlio.stage.planning.job import Job
from dlio.stage.planning.plan import Plan

BEAT_SECONDS = 1.0
_MOST_TOLD = 10  # records that all processes together write in a second
_MOST_READ = 500  # records of others that rank 0 reads in a second, once it only waits for them
FIRST_SECONDS = 3.0  # a shorter copy is shown to no other node
_SOON_SECONDS = 0.1
HANGS_SECONDS = 3600.0  # without a block: a recall from tape takes many minutes
_SAY_SECONDS = 60.0

_log = logging.getLogger(__name__)


class Foreground:
    """Waits for the copy, and shows how far all nodes are to the job's listener; for one thread.

    Nodes that pass files to each other know it anyway. Of others each process that copies writes it to a folder, if the
    nodes see one and it takes longer than a moment, and rank 0 reads what the others have written. The more they are,
    the more seldom each does, so that thousands do not keep a file system busy. Once rank 0 has its own copy, it looks
    each second whose last words have arrived, and reads each once, however many end at one moment.
    """

    is_hurried = True

    def __init__(self, job: Job) -> None:
        self._job = job
        self._told: MeetingFolder | None = None
        self._tell_at: float | None = None
        self._pause = max(BEAT_SECONDS, job.topology.world_size / _MOST_TOLD)
        self._others = dict[int, Peer | None].fromkeys(range(1, job.topology.world_size))  # read longest ago first
        self._heard_out = set[int]()  # of which it has the last word
        self._look_at = self._say_at = 0.0
        self._heartbeats = liveness.Heartbeats()

    def fitted(self, plan: Plan, folder: StagedFolder) -> Plan:
        """Returns the plan once there is room for all of it; raises StorageError."""
        missing = folder.missing(plan.wanted)
        lacked = sum(file.num_bytes for file in missing) - sum(LiveFolder(folder).begun(missing).values())
        make_room(folder, lacked, plan.count(missing))
        if self._job.listeners.expect:
            self._job.listeners.expect(lacked)
        return plan

    def begin(self, node: Node) -> None:
        """Takes a node that runs."""
        self._tell_at = world.monotonic() + FIRST_SECONDS

    def until_complete(self, node: Node) -> None:
        """Returns once the node has all that it keeps; raises the first error of a file."""
        self._show(node)
        while not node.fill.settled.wait(BEAT_SECONDS):
            node.tell()
            self._show(node)
            self._check_pace(node)
        if node.fill.failure and not node.store.is_complete:
            raise node.fill.failure

    def _check_pace(self, node: Node) -> None:
        """Says now and then for what the copy waits, while nothing comes; raises StorageError after an hour."""
        if (problem := node.fill.hanging) and world.monotonic() >= self._say_at:
            self._say_at = world.monotonic() + _SAY_SECONDS
            _log.warning("%s: it is awaited for %.0f s", problem, HANGS_SECONDS)
        if problem and world.monotonic() - node.fill.latest > HANGS_SECONDS:
            raise StorageError(f"{problem}: {ADVICE}")

    def until_unneeded(self, node: Node) -> None:
        """Serves until each other node has all, is lost or stuck; nodes that only show it are waited for by rank 0."""
        node.tell()
        self._show(node)
        told_at = world.monotonic()
        while self._awaits_any(node):
            world.sleep(_SOON_SECONDS)
            if world.monotonic() - told_at > BEAT_SECONDS:
                told_at = world.monotonic()
                node.tell()
                self._show(node)
        self._show(node)
        if node.meeting:
            _name_lost(node.meeting)

    def close(self, node: Node) -> None:
        """Ends the node, after a last word for rank 0."""
        with closing(node):
            if self._told:
                self._told.leave(self._own(node))

    def _show(self, node: Node) -> None:
        """Calls the listener with the latest figures of all nodes."""
        if (watch := self._job.listeners.watch) is None:
            return
        if node.meeting:
            others = node.meeting.known()
        elif self._tells(node) and self._job.topology.rank == 0:
            others = [peer for peer in self._others.values() if peer]
        else:
            return
        watch(sorted([node.peer(), *others], key=lambda peer: peer.node))

    def _tells(self, node: Node) -> bool:
        """Writes how far this node is, and on rank 0 reads how far others are; returns whether that can be done."""
        rank, size, now = self._job.topology.rank, self._job.topology.world_size, world.monotonic()
        if size == 1 or self._tell_at is None or now < self._tell_at:
            return self._told is not None
        self._tell_at = now + self._pause
        try:
            if self._told is None:
                path = meeting_folder(self._job.manifest.content_id, kind=SHOWN)
                self._told = MeetingFolder(path, rank, size, all_come=False)
            self._told.tell(self._own(node))
        except (StorageError, UsageError) as error:
            _log.info("the progress of all nodes is not shown: %s", error)
            self._tell_at = None
            return False
        if rank == 0:
            self._read_others(self._told, size)
        return True

    def _own(self, node: Node) -> Peer:
        """Returns what this process shows; alone it is the only node of its plan."""
        return replace(node.peer(), node=self._job.topology.rank)

    def _read_others(self, told: MeetingFolder, most: int) -> None:
        """Reads the new last words, and so many others of what is awaited: those whose turn it is."""
        self._others.update((peer.node, peer) for peer in told.last_words(self._heard_out))
        for rank in [rank for rank, peer in self._others.items() if peer is None or _is_awaited(peer)][:most]:
            before = self._others.pop(rank)
            self._others[rank] = told.find(rank) or before

    def _awaits_any(self, node: Node) -> bool:
        if node.meeting:
            return node.meeting.awaits_any()
        if self._told is None or self._job.topology.rank:
            return False
        if (now := world.monotonic()) < self._look_at:
            return True
        self._look_at = now + BEAT_SECONDS
        self._read_others(self._told, _MOST_READ)
        patience = max(liveness.LOST_SECONDS, 2 * self._pause)  # each writes once in a pause
        awaited = [peer for peer in self._others.values() if peer and _is_awaited(peer)]
        silent = [self._heartbeats.note(peer.node, peer.staged_bytes) for peer in awaited]
        return any(seconds < patience for seconds in silent)


def _is_awaited(peer: Peer) -> bool:
    return not (peer.is_complete or peer.has_left)


def _name_lost(meeting: Meeting) -> None:
    """Logs which nodes are not complete."""
    if absent := meeting.absent():
        _log.warning(
            "nodes %s of %d were not heard of: start dlio stage on every node, with the same data, and with a "
            "meeting folder that all of them see",
            absent,
            meeting.num_nodes,
        )
    for peer in meeting.lost():
        why = f": {peer.waiting_for}" if peer.waiting_for else ""
        what = "ended" if peer.has_left else "was lost"
        _log.warning("node %d (%s) %s before its copy was complete%s", peer.node, peer.owner.host, what, why)
