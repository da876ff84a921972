"""What `dlio stage` shows of all nodes of a job while it waits, and when a node that has all may leave the others."""

from __future__ import annotations

import logging

from dlio.cluster import liveness
from dlio.errors import StorageError, UsageError
from dlio.io import world
from dlio.stage.engine.node import Node
from dlio.stage.job import Job
from dlio.stage.meeting.folder import SHOWN, MeetingFolder, meeting_folder
from dlio.stage.meeting.meeting import Meeting

BEAT_SECONDS = 1.0
FIRST_SECONDS = 3.0  # a shorter copy is shown to no other node
_SOON_SECONDS = 0.1

_log = logging.getLogger(__name__)


class Together:
    """Shows how far all nodes are to the job's listener; for one thread.

    Nodes that pass files to each other know it anyway. Of others each process that copies writes it to a folder, if the
    nodes see one and it takes longer than a moment, and rank 0 reads what the others have written.

    Args:
        job: whose `watch` is called.

    Attributes:
        node: this node.
    """

    def __init__(self, job: Job, node: Node) -> None:
        self.node = node
        self._job = job
        self._told: Meeting | None = None
        self._begins_at: float | None = world.monotonic() + FIRST_SECONDS
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
            self._told.leave(self.node.peer())

    def show(self) -> None:
        """Calls the listener with the latest figures of all nodes."""
        if (watch := self._job.listeners.watch) is None:
            return
        meeting = self.node.meeting or self._tells()
        if meeting and (self.node.meeting or self._job.topology.rank == 0):
            watch(sorted([self.node.peer(), *meeting.known()], key=lambda peer: peer.node))

    def _tells(self) -> Meeting | None:
        """Writes how far this node is, and returns where the others do; None if that cannot be done, or not yet."""
        rank, size = self._job.topology.rank, self._job.topology.world_size
        if size == 1 or self._begins_at is None or world.monotonic() < self._begins_at:
            return None
        try:
            if self._told is None:
                path = meeting_folder(self._job.manifest.content_id, kind=SHOWN)
                self._told = Meeting(MeetingFolder(path, rank, size, all_come=False), rank, size)
            self._told.tell(self.node.peer())
        except (StorageError, UsageError) as error:
            _log.info("the progress of all nodes is not shown: %s", error)
            self._begins_at = None
            return None
        return self._told

    def _awaits_any(self) -> bool:
        if meeting := self.node.meeting:
            return meeting.awaits_any(lambda peer: self.node.is_stuck(peer.node, peer.staged))
        if self._told is None or self._job.topology.rank:
            return False
        return any(
            not peer.is_complete and self._heartbeats.note(peer.node, peer.staged) < liveness.LOST_SECONDS
            for peer in self._told.all_peers()
        )
