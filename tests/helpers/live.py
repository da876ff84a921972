"""Nodes of a job that stage live, each with its own folder, in this process or in their own agents."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import pytest

from dlio.dataset.manifest import File, Manifest
from dlio.dataset.schema import Schema
from dlio.dataset.shard import Shard
from dlio.io import files
from dlio.io.world.own_address import INTERFACE
from dlio.locking.claim import claimed
from dlio.locking.claim_file import Claim
from dlio.rights.access import Access
from dlio.stage.client.client import Client
from dlio.stage.client.start import Task
from dlio.stage.copies.base_folder import open_up
from dlio.stage.copies.folder import StagedFolder
from dlio.stage.copies.live_folder import LiveFolder
from dlio.stage.copies.locations import folder_for_us
from dlio.stage.engine.background import Background
from dlio.stage.engine.complete import begin_copy
from dlio.stage.engine.fetch import Fetching
from dlio.stage.engine.node import Node, within_room
from dlio.stage.engine.store import Store
from dlio.stage.meeting import meeting
from dlio.stage.meeting.folder import MEET, MeetingFolder, meeting_folder
from dlio.stage.meeting.meeting import Meeting
from dlio.stage.planning.job import Job
from dlio.stage.planning.plan import Plan
from dlio.stage.protocol import tcp, wire
from dlio.stage.protocol.connection import CLIENT_BYTES, Connection
from dlio.stage.protocol.tcp import TcpListener
from dlio.stage.protocol.wire import Origin
from dlio.stage.sources import StagingSource
from tests.helpers.staging import node as topology_of

WAIT_SECONDS = 60.0
NAME = b"a loader"
assert len(NAME) == CLIENT_BYTES


def meet_in(folder: Path, patch: pytest.MonkeyPatch) -> None:
    """Lets nodes on this machine find each other by a folder, over the loopback interface."""
    patch.setenv(MEET, str(folder))
    patch.setenv(INTERFACE, "127.0.0.1")


def are_patient(patch: pytest.MonkeyPatch) -> None:
    """Lets nodes take none for lost because it is slow, as on a busy machine."""
    patch.setattr(meeting, "JOIN_SECONDS", WAIT_SECONDS)
    for name in ("CONNECT_SECONDS", "SILENCE_SECONDS"):
        patch.setattr(wire, name, WAIT_SECONDS)


def met(content: str, node: int, count: int) -> Meeting:
    """Returns a node's part of a meeting in the folder of this job."""
    return Meeting(MeetingFolder(meeting_folder(content), node, count), node, count, content)


def eventually(holds: Callable[[], bool], seconds: float = WAIT_SECONDS) -> None:
    """Waits until something holds."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "it did not come"
        time.sleep(0.01)


def task(source: Path, dest: Path, rank: int = 0, count: int = 1, **more: object) -> Task:
    """Returns the task of one node."""
    given = {"strategy": "replicate"} | more
    return Task(str(source), dest, topology=topology_of(rank, count), **given)  # type: ignore[arg-type]


def prepared(given: Task) -> tuple[Job, Plan, StagedFolder]:
    """Returns a task's job, the part of its node, and the folder of the copy."""
    job, plan, copy = given.planned()
    return job, plan, folder_for_us(job.dest, copy, plan.wanted)


def background(given: Task) -> Background:
    """Returns what an agent is that says nothing."""
    return Background(given, lambda _: None, lambda _: None)


@contextmanager
def filled(given: Task, claim: Claim | None) -> Iterator[Node]:
    """Yields a node that fetches and serves, until the block ends."""
    job, plan, folder = prepared(given)
    plan = within_room(background(given).fitted(plan, folder), folder, claim, job.holder)
    with closing(Node(job, plan, folder)) as node:
        node.begin(claim)
        yield node


class _Left(BaseException):
    """Leaves the copy unfinished, for the next process that claims it."""


@contextmanager
def working(given: Task) -> Iterator[Node]:
    """Yields a node running in threads of this process, which holds the claim on the copy."""
    job, plan, folder = prepared(given)
    open_up(folder.dest)
    with suppress(_Left), claimed(folder.claims, lambda: folder.holds(plan.wanted)) as claims:
        if claims:
            begin_copy(folder, str(job.source), claims)
        with filled(given, claims and claims[0]) as node:
            yield node
            if claims and not (node.store.is_complete and node.plan.is_whole):
                raise _Left
            if claims:
                node.publish()


@contextmanager
def nodes(source: Path, around: Path, count: int, **more: object) -> Iterator[list[Node]]:
    """Yields `count` nodes running, with DEST folders below `around`."""
    with ExitStack() as stack:
        found = []
        for rank in range(count):
            dest = around / f"node{rank}"
            dest.mkdir(exist_ok=True)
            found.append(stack.enter_context(working(task(source, dest, rank, count, **more))))
        yield found


def client_of(node: Node) -> Client:
    """Returns a loader's client."""
    return Client(node.folder)


@contextmanager
def open_to_nodes(source: Path, dest: Path, patch: pytest.MonkeyPatch) -> Iterator[Node]:
    """Yields node 0 of 2, which has staged all: the other one does not come."""
    meet_in(dest.parent / "meet", patch)
    for name in ("JOIN_SECONDS", "LATE_SECONDS"):
        patch.setattr(meeting, name, 0.0)
    with working(task(source, dest, 0, 2)) as node:
        eventually(lambda: is_complete(node))
        yield node


@dataclass(frozen=True, slots=True)
class Anywhere:
    """A source of which a store is not told where it is."""

    def name_of(self, file: File) -> str:
        """Returns the same for all files."""
        return "source"

    def access(self, file: File) -> Access:
        """Returns that all may read them."""
        return Access(0o644)


def plan_of(listed: Sequence[File], node: int = 0, num_nodes: int = 1) -> Plan:
    """Returns the plan of a node that keeps these files, each its own shard."""
    shards = tuple(Shard(str(number), 1, (file,)) for number, file in enumerate(listed))
    return Plan(Manifest("tfrecord", Schema.of({"image": "bytes"}, (), 0), shards), node, num_nodes)


def store_of(
    live: LiveFolder, listed: Sequence[File], lacking: Collection[int] | None = None, **more: Callable[[int], None]
) -> Store:
    """Returns the store of a node that keeps these files, each its own shard."""
    lacking, source = range(len(listed)) if lacking is None else lacking, Anywhere()
    return Store(live, plan_of(listed), lacking, source.name_of, source.access, **more)


class FetchedBy(Fetching):
    """Fetches by a function, which is told whether a span must come from the source."""

    def __init__(self, fetch: Callable[[int, int, memoryview, bool], Origin], listed: Sequence[File]) -> None:
        super().__init__(cast(StagingSource, Anywhere()), plan_of(listed))
        self._call = fetch

    def fetch(self, number: int, begin: int, target: memoryview, is_urgent: bool = True) -> Origin:
        """Fills `target`."""
        return self._call(number, begin, target, number in self._from_source)


def token_of(node: Node) -> bytes:
    """Returns the token of a job of several nodes."""
    assert node.meeting
    return node.meeting.token


def connected(node: Node, token: bytes | None = None, name: bytes = NAME) -> Connection:
    """Returns a connection by TCP."""
    return tcp.connect(node.address, token or token_of(node), node.plan.manifest.content_id, name)


def let_in(listener: TcpListener, peer: socket.socket) -> None:
    """Verifies a client as an agent does."""
    greeting = listener.greet(peer)
    peer.sendall(greeting)
    peer.sendall(listener.verify(peer, greeting, wire.receive(peer, listener.answer_bytes))[1])


def is_complete(node: Node) -> bool:
    """Returns whether all that a node keeps is complete."""
    return node.store.is_complete


def content(manifest: Manifest, number: int) -> bytes:
    """Returns the bytes of a file of a data set, by its number."""
    names = [file.name for shard in manifest.shards for file in shard.files]
    return (manifest.root / names[number]).read_bytes()


def live_at(folder: Path) -> LiveFolder:
    """Returns the live folder of a copy that is not made."""
    return LiveFolder(StagedFolder(folder, "0" * 32))


def made_at(folder: Path) -> LiveFolder:
    """Makes a copy with a live folder."""
    live = live_at(folder)
    live.staged.path.mkdir(parents=True)
    live.make()
    return live


def store_at(folder: Path, listed: list[File], report: Callable[[int], None] | None = None) -> Store:
    """Makes a copy, and returns the store of a node that keeps these files in it."""
    return store_of(made_at(folder), listed, **({"report": report} if report else {}))


def zeros(number: int, begin: int, target: memoryview, only_source: bool) -> Origin:
    """Fills `target` with zeros, as from the source."""
    target[:] = bytes(len(target))
    return Origin.SOURCE


def files_of_zeros(count: int, size: int) -> list[File]:
    """Returns files that hold zeros only."""
    return [File(f"{each}.bin", size, files.digest_bytes(bytes(size))) for each in range(count)]
