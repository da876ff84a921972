"""What `dlio stage` shows of all nodes of a job while it waits, and when a node that has all may leave the others."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress

from dlio.cluster import liveness
from dlio.errors import StorageError, UsageError
from dlio.io import world
from dlio.stage.engine.node import Node
from dlio.stage.job import Job
from dlio.stage.meeting.folder import SHOWN, MeetingFolder, meeting_folder
from dlio.stage.meeting.meeting import Meeting, Peer

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
        self._shown: MeetingFolder | None = None
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
        if self._shown:
            self._shown.leave(self.node.peer())

    def show(self) -> None:
        """Calls the listener with the latest figures of all nodes."""
        watch, meeting = self._job.listeners.watch, self.node.meeting
        if watch is None:
            return
        if meeting:
            peers = sorted([self.node.peer(), *meeting.known()], key=lambda peer: peer.node)
            watch(peers)
        elif self._tells() and self._job.topology.rank == 0:
            watch([*self._others(), self.node.peer()])

    def _tells(self) -> bool:
        """Writes how far this node is; returns whether that could be done."""
        if self._job.topology.world_size == 1 or self._begins_at is None or world.monotonic() < self._begins_at:
            return False
        try:
            if self._shown is None:
                path = meeting_folder(self._job.manifest.content_id, kind=SHOWN)
                self._shown = MeetingFolder(
                    path, self._job.topology.rank, self._job.topology.world_size, all_come=False
                )
            self._shown.tell(self.node.peer())
        except (StorageError, UsageError) as error:
            _log.info("the progress of all nodes is not shown: %s", error)
            self._begins_at = None
            return False
        return True

    def _others(self) -> Sequence[Peer]:
        """Returns the other processes that copy, or have copied."""
        if self._shown is None:
            return []
        with suppress(StorageError):
            ranks = [rank for rank in self._shown.nodes() if rank != self._job.topology.rank]
            return [found[0] for found in map(self._shown.look, ranks) if found]
        return []

    def _awaits_any(self) -> bool:
        if meeting := self.node.meeting:
            return meeting.awaits_any(lambda peer: self.node.is_stuck(peer.node, peer.staged))
        if self._shown is None or self._job.topology.rank:
            return False
        return any(
            not (peer.has_left or peer.is_complete)
            and self._heartbeats.note(peer.node, peer.staged) < liveness.LOST_SECONDS
            for peer in self._others()
        )
