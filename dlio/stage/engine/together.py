"""What `dlio stage` shows of all nodes of a job while it waits, and when a node that has all may leave the others."""

from __future__ import annotations

import logging
from dataclasses import replace

from dlio.cluster import liveness
from dlio.errors import StorageError, UsageError
from dlio.io import world
from dlio.stage.engine.node import Node
from dlio.stage.job import Job
from dlio.stage.meeting.folder import SHOWN, MeetingFolder, meeting_folder
from dlio.stage.meeting.meeting import Meeting
from dlio.stage.meeting.peer import Peer

BEAT_SECONDS = 1.0
_MOST_TOLD = 10  # records that all processes together write in a second
FIRST_SECONDS = 3.0  # a shorter copy is shown to no other node
_SOON_SECONDS = 0.1

_log = logging.getLogger(__name__)


class Together:
    """Shows how far all nodes are to the job's listener; for one thread.

    Nodes that pass files to each other know it anyway. Of others each process that copies writes it to a folder, if the
    nodes see one and it takes longer than a moment, and rank 0 reads what the others have written. The more they are,
    the more seldom each does, so that thousands do not keep a file system busy.

    Args:
        job: whose `watch` is called.

    Attributes:
        node: this node.
    """

    def __init__(self, job: Job, node: Node) -> None:
        self.node = node
        self._job = job
        self._told: MeetingFolder | None = None
        self._tell_at: float | None = world.monotonic() + FIRST_SECONDS
        self._pause = max(BEAT_SECONDS, job.topology.world_size / _MOST_TOLD)
        self._others = dict[int, Peer]()
        self._heartbeats = liveness.Heartbeats()

    def wait(self) -> None:
        """Returns once the node has all that it keeps; raises the first error of a file."""
        self.show()
        while not self.node.fill.settled.wait(BEAT_SECONDS):
            self.node.beat()
            self.show()
        if self.node.fill.failure and not self.node.store.is_complete:
            raise self.node.fill.failure

    def serve(self) -> None:
        """Serves until each other node has all, is lost or stuck; nodes that only show it are waited for by rank 0."""
        self.node.beat()
        self.show()
        beaten = world.monotonic()
        while self._awaits_any():
            world.sleep(_SOON_SECONDS)
            if world.monotonic() - beaten > BEAT_SECONDS:
                beaten = world.monotonic()
                self.node.beat()
                self.show()
        self.show()
        if self.node.meeting:
            self._name_lost(self.node.meeting)

    @staticmethod
    def _name_lost(meeting: Meeting) -> None:
        """Logs which nodes are not complete."""
        if absent := meeting.absent():
            _log.warning("nodes %s of %d did not come: start dlio stage on every node", absent, meeting.num_nodes)
        for peer in meeting.lost():
            why = f": {peer.waiting_for}" if peer.waiting_for else ""
            _log.warning("node %d (%s) was lost before its copy was complete%s", peer.node, peer.owner.host, why)

    def close(self) -> None:
        """Leaves a last word for rank 0."""
        if self._told:
            self._told.leave(self._own())

    def show(self) -> None:
        """Calls the listener with the latest figures of all nodes."""
        if (watch := self._job.listeners.watch) is None:
            return
        if meeting := self.node.meeting:
            others = meeting.known()
        elif self._tells() and self._job.topology.rank == 0:
            others = [*self._others.values()]
        else:
            return
        watch(sorted([self.node.peer(), *others], key=lambda peer: peer.node))

    def _tells(self) -> bool:
        """Writes how far this node is, and on rank 0 reads how far others are; returns whether that can be done."""
        rank, size, now = self._job.topology.rank, self._job.topology.world_size, world.monotonic()
        if size == 1 or self._tell_at is None or now < self._tell_at:
            return self._told is not None
        self._tell_at = now + self._pause
        try:
            if self._told is None:
                path = meeting_folder(self._job.manifest.content_id, kind=SHOWN)
                self._told = MeetingFolder(path, rank, size, all_come=False)
            self._told.tell(self._own())
        except (StorageError, UsageError) as error:
            _log.info("the progress of all nodes is not shown: %s", error)
            self._tell_at = None
            return False
        if rank == 0:
            self._read_others(self._told, size)
        return True

    def _own(self) -> Peer:
        """Returns what this process shows; alone it is the only node of its plan."""
        return replace(self.node.peer(), node=self._job.topology.rank)

    def _read_others(self, told: MeetingFolder, size: int) -> None:
        for node in range(1, size):
            if not ((peer := self._others.get(node)) and peer.is_complete) and (peer := told.find(node)):
                self._others[node] = peer

    def _awaits_any(self) -> bool:
        if self.node.meeting:
            return self.node.awaits_any()
        if self._told is None or self._job.topology.rank:
            return False
        patience = max(liveness.LOST_SECONDS, 2 * self._pause)
        return any(
            not (peer.is_complete or peer.has_left) and self._heartbeats.note(peer.node, peer.staged) < patience
            for peer in self._others.values()
        )
