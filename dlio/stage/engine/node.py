"""The engine of one node: what it keeps and fetches, and what it reports."""

from __future__ import annotations

import logging
import shutil
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial

from dlio.cluster import liveness
from dlio.dataset.shard import files_of
from dlio.errors import StorageError
from dlio.io import files, world
from dlio.locking.claim_file import Claim, is_in_force
from dlio.locking.owner import Owner
from dlio.stage.copies.folder import StagedFolder
from dlio.stage.copies.live_folder import AgentRecord, LiveFolder
from dlio.stage.copies.node_cache import make_way
from dlio.stage.engine.fetch import Fetching
from dlio.stage.engine.fill import Fill
from dlio.stage.engine.server import Server
from dlio.stage.engine.store import Store
from dlio.stage.engine.writing import Create
from dlio.stage.meeting.agreeing import agree
from dlio.stage.meeting.folder import MeetingFolder, meeting_folder
from dlio.stage.meeting.meeting import Meeting
from dlio.stage.meeting.peer import Peer, shortened
from dlio.stage.planning.job import Job
from dlio.stage.planning.plan import Plan
from dlio.stage.protocol.serving import ended_by
from dlio.stage.protocol.unix import UnixListener

_LOOK_SECONDS = 0.02  # between two looks whether the rooms of all nodes are known

_log = logging.getLogger(__name__)


def within_room(plan: Plan, folder: StagedFolder, claim: Claim | None, holder: Owner | None) -> Plan:
    """Returns a plan with the room that is left once files that it does not keep have made way, as far as they may.

    Args:
        plan, folder: of the copy.
        claim: this process's.
        holder: of this job's lease.

    Raises:
        StorageError: the claim is over, or the folder cannot be read.
    """
    if plan.is_whole:
        return plan
    _check_claim(folder, claim)
    stays = make_way(LiveFolder(folder), *plan.others, holder)
    return replace(plan, room=max(0, plan.room - stays)) if stays else plan


def _check_claim(folder: StagedFolder, claim: Claim | None) -> None:
    if claim and not is_in_force(folder.claims, claim):
        raise StorageError(f"{folder.path} is filled by another process, which counted this one as lost: stage again")


class Node:
    """One node's part of a copy, being filled; `fill` and `server` run in threads of their own.

    Attributes:
        fetching: where the files come from.
        meeting: the other nodes; None if files are passed to none.
        is_needed: whether the next agent of a part continues with what this one leaves.

    Args:
        job: where the data set is read, and who may read the copy.
        plan: this node's part.
        folder: of the copy.
        create: makes an unfinished file; None for a plain file.
        is_hurried: somebody waits until all files are here, or one has failed.
        meeting: the other nodes; None to meet them in a folder, if the plan has others.
    """

    def __init__(
        self,
        job: Job,
        plan: Plan,
        folder: StagedFolder,
        create: Create | None = None,
        *,
        is_hurried: bool = False,
        meeting: Meeting | None = None,
    ) -> None:
        self._job, self.folder, self._is_hurried = job, folder, is_hurried
        self._live, self._over = LiveFolder(folder), world.event()
        self._live.make()
        self._inode = self._live.path.stat().st_ino
        self._began, self._owner, self.is_needed = world.monotonic(), Owner.current(), True
        content = plan.manifest.content_id
        if meeting is None and plan.num_nodes > 1:
            place = MeetingFolder(meeting_folder(content), plan.node, plan.num_nodes)
            meeting = Meeting(place, plan.node, plan.num_nodes, content)
        self.meeting = meeting
        self._claim: Claim | None = None
        self._is_published = folder.has_manifest()
        absent, told = self._lacking(plan), job.listeners.report
        self.store = store = Store(
            self._live, plan, absent, job.source.name_of, job.access, create, told, is_hurried=is_hurried
        )
        self._had = store.present_bytes + sum(self._live.begun([plan.listed[number] for number in absent]).values())
        self.fetching = Fetching(job.source, plan, self.meeting, store.learned.receives, store.opened)
        self.fill = Fill(store, self.fetching, is_hurried=is_hurried)
        with ExitStack() as listening:  # an address at which nobody answers would hold up the others
            self._unix = None if folder.share else ended_by(listening, UnixListener(self._live))
            self._tcp = ended_by(listening, self.meeting.listener()) if self.meeting else None
            listeners = [listener for listener in (self._unix, self._tcp) if listener]
            self.server = Server(listeners, meeting, store, self.fill, self.fetching, self.peer)
            listening.pop_all()

    def __str__(self) -> str:
        return f"node {self.plan.node} of {self.plan.num_nodes}, at {self._tcp or self._unix}"

    @property
    def plan(self) -> Plan:
        """This node's part, as it is now."""
        return self.fetching.plan

    @property
    def address(self) -> world.Address:
        """Where other nodes reach this one; of the only node of a job, which opens no port, a placeholder."""
        return self._tcp.address if self._tcp else ("", 0)

    def _lacking(self, plan: Plan) -> set[int]:
        """Returns the numbers of the files of its part that have no final name, or digest, yet; raises StorageError."""
        kept = {plan.listed[number]: number for number in plan.kept}
        return {kept[file] for file in self._live.lacking(list(kept), plan.groups)}

    def begin(self, claim: Claim | None = None) -> None:
        """Publishes its address for the loaders and the other nodes, and starts to fetch.

        Raises:
            StorageError: the claim is over: another process took this one for lost, and the unfinished files are its.
        """
        _check_claim(self.folder, claim)
        self._claim = claim
        self._live.keep_manifest(self.plan.manifest)
        with files.storage_errors("create", self.folder.path):
            path = self.folder.path
            for inner in dict.fromkeys(file.name.rpartition("/")[0] for file in files_of(self.plan.manifest.shards)):
                files.make_folders(path, path / inner)
        self.tell()
        if self._unix:  # before any block can take the disk's last room
            node, nodes = self.plan.node, self.plan.num_nodes
            self._live.write_record(AgentRecord(self._owner, self._unix.where, node, nodes, not self._is_hurried))
        world.start(self._beat, "dlio-beat")
        self.server.follow()
        self.fill.start()
        if self.meeting and not self.plan.knows_rooms:
            world.start(partial(self._learn_rooms, self.meeting), "dlio-rooms")

    def _learn_rooms(self, meeting: Meeting) -> None:
        """Makes a plan with the rooms of all nodes, once one needs it and they are known, and carries it out.

        Its own thread runs this: the meeting folder may hang, which holds up nobody who asks this node.
        """
        if self.plan.is_waiting:
            self.fetching.needs_rooms.set()
        self.fetching.needs_rooms.wait()
        while not (self._over.is_set() or self.plan.knows_rooms):
            try:
                if (rooms := meeting.rooms(self.plan.room)) and not self._over.is_set():
                    self._follow(replace(self.plan, rooms=rooms))
            except StorageError as error:  # tried again
                _log.warning("%s keeps to its part without the rooms of all nodes for now: %s", self, error)
            self._over.wait(_LOOK_SECONDS)

    def _follow(self, plan: Plan) -> None:
        """Carries out another plan from now on; raises StorageError before anything has changed."""
        if not self.is_ours:  # another process fills the copy: this one ends
            return
        if self.plan.is_waiting:  # first: who asks by the new plan finds it kept
            plan = within_room(plan, self.folder, self._claim, self._job.holder)
            self.store.keep(plan, self._lacking(plan))
        self.fetching.follow(plan)
        self.server.follow()

    def tell(self) -> None:
        """Tells the other nodes how this one is reached, if they may not know."""
        if self.meeting:
            with suppress(StorageError):  # the shared file system hangs or is full: tried again at the next beat
                self.meeting.tell(self.peer())

    def peer(self) -> Peer:
        """Returns this node's record for the other nodes, for `dlio stage --status` and for its bar."""
        done, has_all = max(self.store.present_bytes, self._had), self.store.is_complete
        latest, now = self.fill.latest, world.monotonic()
        rate = round(self.store.written_bytes / max((latest if has_all else now) - self._began, 1e-9))
        is_complete = has_all and (self._is_published or not self.plan.is_whole)  # a part of it gets no manifest
        return Peer(
            self.plan.node, self.address, self._owner, is_complete, done, self.store.num_bytes, rate,
            shortened(self.fill.problem), self._had, idle_seconds=int(now - latest), room=self.plan.room,
            keeps_all=self.plan.is_whole,
        )  # fmt: skip

    def publish(self) -> None:
        """Compares what it has found with the other nodes, and publishes the copy; only then it says that it has all.

        Raises:
            DigestError, StorageError: as dlio/stage/meeting/agreeing.py, or the file system refused.
        """
        if not all(file.digest for file in self.plan.listed):
            learned, took = self.store.learned, world.monotonic() - self._began
            agree(self.meeting, self.plan, self.folder.path, learned, self.fetching.digest_at_source, took)
        if not self.folder.share:
            self.folder.finish(self.plan.manifest, self._kept_names(), self._job.access(None))
        self._is_published = True
        self.tell()

    def _beat(self) -> None:
        """Shows that this node lives, even while the source or a disk hangs."""
        while not self._over.wait(liveness.BEAT_SECONDS):
            self._live.beat()

    @property
    def is_ours(self) -> bool:
        """Whether the live folder is the one that this process has filled: its successor makes another."""
        try:
            return self._live.path.stat().st_ino == self._inode
        except OSError:
            return False

    def _kept_names(self) -> list[str]:
        learned = self.store.learned
        return [name for number in sorted(self.plan.kept) for name in learned.names_of(self.plan.listed[number].name)]

    def close(self) -> bool:
        """Stops fetching and serving, and removes its records; returns whether nothing can be written any more."""
        is_ours = self.is_ours
        self._over.set()
        self.fetching.needs_rooms.set()
        if is_ours:
            self._live.remove_record()
        if self.meeting and self.peer().is_complete:
            self.meeting.farewell()
        self.server.close()
        has_stopped = self.fill.stop()
        if has_stopped:
            self.store.close()
        self.fetching.close()
        if self.meeting:
            self.meeting.leave(self.peer() if self._is_hurried else None)
        is_over = self._is_published and not (self.is_needed and self.plan.needs_peers)  # else for the next agent
        if is_ours and is_over:
            shutil.rmtree(self._live.path, ignore_errors=True)
            with suppress(StorageError):  # after a loss of power it would be there again
                files.sync_folder(self._live.path.parent)
        return has_stopped
