"""The agent of one node: what it keeps and fetches, what it reports, and when it ends."""

from __future__ import annotations

import logging
import shutil
import threading
import time
from contextlib import suppress
from dataclasses import replace
from typing import Any

from dlio.cluster.liveness import Signs
from dlio.errors import StorageError
from dlio.io import files
from dlio.io.filesystems import filesystem_of
from dlio.io.sizes import format_size
from dlio.locking.owner import Owner
from dlio.stage.cache import lease
from dlio.stage.cache.folder import StagedFolder
from dlio.stage.cache.node_cache import make_room
from dlio.stage.job import Job
from dlio.stage.live.agent.fill import Fill
from dlio.stage.live.agent.meeting import Meeting, Peer, host_address
from dlio.stage.live.agent.near_and_far import NearAndFar
from dlio.stage.live.agent.peers import Fetching
from dlio.stage.live.agent.relay import Relay
from dlio.stage.live.agent.server import Server
from dlio.stage.live.agent.store import Store
from dlio.stage.live.folder import FILES, AgentRecord, LiveFolder
from dlio.stage.live.start import Task, needs_peers
from dlio.stage.live.tcp import Address, TcpListener
from dlio.stage.live.unix import UnixListener
from dlio.stage.planning.live import Plan
from dlio.stage.transfer.copy import Copying

_TICK_SECONDS = 0.25
_LOOK_SECONDS = 2.0  # between two looks at leases and folders
UNUSED_SECONDS = 10.0  # without a client
STUCK_SECONDS = 600.0  # without a block: nobody waits any longer for a node
_FULL = 0.98  # of the room that is left, if it is not enough
_SHOWN_NODES, _SHOWN_TEXT = 100, 200  # so that they fit into `wire.MAX_STAT`

_log = logging.getLogger(__name__)


class LetGo(BaseException):
    """The work is left to the next process that claims it."""


class Node:
    """One node's part of a copy, at work; `store`, `fill` and `server` run in threads of their own.

    Args:
        task: what it is to do.
        job, plan, folder: as `Task.prepared`.
    """

    def __init__(self, task: Task, job: Job, plan: Plan, folder: StagedFolder) -> None:
        self.plan = replace(plan, room=self._room(task, plan, folder))
        self._job, self.folder = job, folder
        self._live = LiveFolder(folder)
        self._live.make()
        self._live.keep_task(task.to_json())
        self._orders: dict[bytes, list[int]] = {}
        self._began = time.monotonic()
        self._is_needed = True
        content = plan.manifest.content_id
        self._meeting = Meeting(content, plan.node, plan.num_nodes) if plan.num_nodes > 1 else None
        copying = Copying(self._live.path / FILES, folder.path, job.access)
        self.store = Store(self._live, self.plan.listed, self.plan.kept, copying)
        self._begun_bytes = self.store.present_bytes
        self._fetching = Fetching(job.source, self.plan, self._meeting)
        fetching = self._fetching
        self.fill = NearAndFar(
            lambda: Fill(self.store, fetching.fetch, self._source_name, fetching.judge, fetching.is_expected),
            lambda number: self.plan.owner(number) != self.plan.node,
            is_alone=self._meeting is None,
        )
        self.owns = self._fetching.owns
        self._relay = Relay(self._fetching.fetch, self._fetching.asked)
        self._lock = threading.Lock()
        self._signs = Signs()
        self._tcp = TcpListener(host_address(), self._meeting.token, content) if self._meeting else None
        self._unix = UnixListener(self._live)
        self.server = Server(
            (self._unix, self._tcp) if self._tcp else (self._unix,), self.store, self.fill, self._relay, self
        )
        self._inode = self._live.path.stat().st_ino

    @property
    def address(self) -> Address:
        """Where other nodes reach this one; of the only node of a job, which opens no port, a place that is none."""
        return self._tcp.address if self._tcp else ("", 0)

    @staticmethod
    def _room(task: Task, plan: Plan, folder: StagedFolder) -> int:
        """Returns the bytes that this node may keep, after making room for what is missing of them."""
        wanted = sum(file.num_bytes for file in plan.wanted)
        most = wanted if task.cache_bytes is None else task.cache_bytes
        here = LiveFolder(folder).present_bytes(plan.listed)
        try:
            make_room(folder, min(wanted, most) - here, len(plan.wanted))
        except StorageError as error:
            free = filesystem_of(folder.dest).free_bytes + here
            _log.warning("%s: %s are kept, the rest is read from elsewhere", error.text, format_size(free))
            most = min(most, int(free * _FULL))
        return max(most, 0)

    def _source_name(self, number: int) -> str:
        return self._job.source.name_of(self.plan.listed[number])

    def begin(self) -> None:
        """Starts to fetch, and publishes its address for the loaders and the other nodes."""
        self._live.keep_manifest(self.plan.manifest)
        with files.storage_errors("create", self.folder.path):
            for inner in {file.name.rpartition("/")[0] for file in self.plan.listed} - {""}:
                (self.folder.path / inner).mkdir(mode=0o700, parents=True, exist_ok=True)
        self.fill.follow(self.plan.order())
        self.fill.start()
        self._tell()
        self._live.write_record(AgentRecord(Owner.current(), self._unix.where, self.plan.node, self.plan.num_nodes))
        _log.warning("node %d of %d listens at %s", self.plan.node, self.plan.num_nodes, self._tcp or self._unix)

    def _tell(self) -> None:
        if self._meeting:
            with suppress(StorageError):  # the shared file system hangs or is full: tried again at the next beat
                self._meeting.tell(self._peer())

    def _peer(self) -> Peer:
        """Returns this node's record for the other nodes and for `dlio stage --status`."""
        done, seconds = self.store.present_bytes, time.monotonic() - self._began
        rate = round((done - self._begun_bytes) / max(seconds, 1e-9))
        return Peer(
            self.plan.node, self.address, Owner.current(), self.store.is_complete, done, self.store.num_bytes,
            rate, self.fill.problem[:_SHOWN_TEXT],
        )  # fmt: skip

    def until_complete(self) -> None:
        """Returns once the copy is complete; raises LetGo if the agent is to end before."""
        while not (self.store.is_complete and self.plan.is_whole):
            self._tick(may_end=not self.plan.is_whole)

    def until_unused(self) -> None:
        """Serves until nobody needs it any more; raises LetGo then, or when it is to end."""
        while True:
            self._tick(may_end=True)

    def _tick(self, *, may_end: bool) -> None:
        for _ in range(round(_LOOK_SECONDS / _TICK_SECONDS)):
            time.sleep(_TICK_SECONDS)
            if self.store.is_complete and not may_end:
                return
        self._live.beat()
        self._tell()
        if self._is_over() or self._is_given_up() or (may_end and self._is_unused()):
            self._is_needed = False
            raise LetGo

    def _is_over(self) -> bool:
        """Returns whether the copy has been removed, or the job has given it back."""
        try:
            if self._live.path.stat().st_ino != self._inode:
                return True
            return bool(lease.job_name()) and not lease.leases(self.folder)
        except OSError:
            return True

    def _is_given_up(self) -> bool:
        """Returns whether the copy cannot be completed, and no loader waits: a later one starts an agent anew."""
        is_stuck = self._is_stuck(self.plan.node, self.store.present_bytes)
        return is_stuck and not self.store.is_complete and self.server.idle_seconds > STUCK_SECONDS

    def _is_stuck(self, node: int, staged: int) -> bool:
        return self._signs.note(node, staged) > STUCK_SECONDS

    def _is_unused(self) -> bool:
        if self.server.idle_seconds < UNUSED_SECONDS:
            return False
        if self.plan.is_whole and self.plan.manifest.node is None:
            peers = self._meeting.all_peers() if self._meeting else []
            return not [peer for peer in peers if not (peer.is_complete or self._is_stuck(peer.node, peer.staged))]
        with suppress(OSError):
            return not lease.leases(self.folder)
        return True

    def order(self, client: bytes, first: int, shards: list[int]) -> None:
        """Takes a part of a client's order; see `Surroundings`."""
        with self._lock:
            told = self._orders.setdefault(client, [])
            told[first:] = shards
            orders = list(self._orders.values())
        self.fill.follow(self.plan.order(orders))

    def left(self, client: bytes) -> None:
        """Forgets a client's order."""
        with self._lock:
            self._orders.pop(client, None)

    def stat(self) -> dict[str, Any]:
        """Returns how far this node and the others are; see dlio/stage/live/status.py."""
        others = self._meeting.all_peers()[:_SHOWN_NODES] if self._meeting else []
        return {
            "node": self.plan.node,
            "num_nodes": self.plan.num_nodes,
            "source_bytes": self._fetching.source_bytes,
            "peer_bytes": self._fetching.peer_bytes,
            "sent_bytes": self.server.sent_bytes,
            "keeps_all": self.plan.is_whole,
            "nodes": [_shown(peer) for peer in (self._peer(), *others)],
        }

    @property
    def kept_names(self) -> list[str]:
        """The names of the files that this node keeps."""
        return [self.plan.listed[number].name for number in sorted(self.plan.kept)]

    def publish(self) -> None:
        """Publishes that the copy is complete."""
        self._tell()
        shutil.rmtree(self._live.path / FILES, ignore_errors=True)

    def close(self) -> bool:
        """Stops fetching and serving, and removes its records; returns whether nothing can be written any more."""
        self._live.remove_record()
        self.server.close()
        has_stopped = self.fill.stop()
        self._relay.close()
        self._fetching.close()
        if self._meeting:
            self._meeting.leave()
        if self.folder.has_manifest() and not (self._is_needed and needs_peers(self.plan)):  # else for the next agent
            shutil.rmtree(self._live.path, ignore_errors=True)
        return has_stopped


def _shown(peer: Peer) -> dict[str, Any]:
    """Returns the figures of a node, for `Client.stat`."""
    return {
        "node": peer.node,
        "host": peer.owner.host,
        "staged_bytes": peer.staged,
        "total_bytes": peer.total,
        "bytes_per_second": peer.rate,
        "is_complete": peer.is_complete,
        "waiting_for": peer.waiting_for,
    }
