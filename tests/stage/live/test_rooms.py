"""Nodes that have different room: how each learns how much the others have, and what it does until then."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest

import dlio
from dlio.dataset.manifest import File, Manifest
from dlio.dataset.tree import SMALL_BYTES
from dlio.errors import StorageError
from dlio.io import files
from dlio.locking.claim_file import Claim
from dlio.locking.owner import Owner
from dlio.stage.client import launch
from dlio.stage.client.client import Client
from dlio.stage.client.start import Task, ensure_agent
from dlio.stage.copies import lease
from dlio.stage.copies.base_folder import open_up
from dlio.stage.copies.live_folder import AgentRecord, LiveFolder
from dlio.stage.engine import __main__ as agent_main
from dlio.stage.engine import background, fetch, writing
from dlio.stage.engine import node as engine
from dlio.stage.engine.fill import Fill
from dlio.stage.engine.node import Node
from dlio.stage.engine.server import Server
from dlio.stage.meeting import meeting as meetings
from dlio.stage.meeting.folder import MeetingFolder
from dlio.stage.meeting.meeting import Meeting
from dlio.stage.meeting.peer import Peer
from tests.helpers.live import (
    are_patient,
    client_of,
    content,
    eventually,
    is_complete,
    made_at,
    meet_in,
    met,
    plan_of,
    prepared,
    store_of,
    task,
    working,
)
from tests.helpers.staging import node as topology_of
from tests.helpers.staging import write_dataset

CONTENT = "c" * 32
T = TypeVar("T")


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Manifest:
    """Returns a data set, whose nodes meet in a folder."""
    meet_in(tmp_path / "meet", monkeypatch)
    return write_dataset(tmp_path / "source", [10_007] * 16)


def test_a_meeting_folder_that_hangs_holds_up_no_reader(
    source: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks, hangs = threading.Event(), threading.Event()

    def rooms(self: Meeting, own: int) -> None:
        with self._looking:  # as while the folder is asked
            looks.set()
            hangs.wait()

    monkeypatch.setattr(Meeting, "rooms", rooms)
    for module, name in ((meetings, "JOIN_SECONDS"), (meetings, "_SOON_SECONDS"), (fetch, "_ROOMS_SECONDS")):
        monkeypatch.setattr(module, name, 0.02)
    with working(task(source.root, tmp_path / "0", 0, 3, cache_bytes=source.num_bytes // 5)) as node:
        try:
            assert looks.wait(60) and node.plan.is_waiting
            for number in range(16):
                data = bytearray(10_007)
                with closing(client_of(node)) as client:
                    client.read(number, [(0, len(data))], memoryview(data))
                assert data == content(source, number)
        finally:
            hangs.set()


def _agents(tasks: Sequence[Task], monkeypatch: pytest.MonkeyPatch) -> tuple[list[Node], list[threading.Thread]]:
    """Returns the nodes of agents that are ready, in this process, and their threads."""
    found, begin = dict[int, Node](), Node.begin

    def noted(self: Node, claim: Claim | None = None) -> None:
        begin(self, claim)
        found[self.plan.node] = self

    monkeypatch.setattr(Node, "begin", noted)
    threads = [threading.Thread(target=agent_main.work, args=(given, lambda _: None)) for given in tasks]
    for thread in threads:
        thread.start()
    eventually(lambda: len(found) == len(tasks))
    return [found[node] for node in range(len(tasks))], threads


def test_a_node_with_a_whole_copy_serves_those_that_keep_less_until_they_end(
    source: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several epochs, and a repeated job, read the source once in all."""
    are_patient(monkeypatch)
    for name in ("UNUSED_SECONDS", "_LOOK_SECONDS"):
        monkeypatch.setattr(background, name, 0.01)
    monkeypatch.setattr(agent_main, "_log_to", lambda _: None)
    tasks = [task(source.root, tmp_path / "0", 0, 2), task(source.root, tmp_path / "1", 1, 2, cache_bytes=20_020)]
    looks, is_unused = list[int](), background._is_unused

    def counted(node: Node) -> bool:
        found = is_unused(node)
        looks.append(node.plan.node)
        return found

    monkeypatch.setattr(background, "_is_unused", counted)
    small, read = prepared(tasks[1])[2], 0
    open_up(small.dest)
    for _ in range(2):
        lease.take(small)
        found, threads = _agents(tasks, monkeypatch)
        try:
            eventually(lambda: all(map(is_complete, found)))  # noqa: B023
            for _ in range(3):
                looks.clear()
                eventually(lambda: looks.count(0) > 2 or not threads[0].is_alive())  # noqa: B023
                with closing(client_of(found[1])) as client:
                    for number in range(16):
                        data = bytearray(10_007)
                        client.read(number, [(0, len(data))], memoryview(data))
                        assert data == content(source, number)
            read += sum(node.fetching.source_bytes for node in found)
            assert threads[0].is_alive()
        finally:
            lease.drop(small.dest, "", small.copy)
            for thread in threads:
                thread.join(60)
        assert not any(thread.is_alive() for thread in threads)
    assert read == source.num_bytes


def test_a_complete_copy_is_served_only_where_other_nodes_may_need_it(
    source: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its lease may find room only once an agent has made some."""
    dlio.stage(source.root, tmp_path / "dest")
    tasks, write = list[Task](), lease._write

    def no_room(text: str, log: Path) -> None:
        tasks.append(Task.from_json(text))
        monkeypatch.setattr(lease, "_write", write)
        raise StorageError(errno.ENOSPC, "no room")

    monkeypatch.setattr(launch, "agent", no_room)
    for count in (1, 2):
        folder = ensure_agent(source.root, tmp_path / "dest", topology=topology_of(0, count))
        assert folder.has_manifest() and len(tasks) == count - 1
        lease.drop(folder.dest, "", folder.copy)
        monkeypatch.setattr(lease, "_write", _full)
    assert not lease.is_leased(ensure_agent(source.root, tmp_path / "dest", topology=topology_of(0, 1)))
    assert lease.is_leased(ensure_agent(source.root, tmp_path / "dest", topology=topology_of(0, 2)))


def _full(*given: object) -> None:
    raise OSError(errno.ENOSPC, "no room")


def test_rooms_that_are_learned_when_a_node_has_ended_change_nothing(
    source: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its successor may fill the copy by then."""
    asked, ended = threading.Event(), threading.Event()

    def rooms(self: Meeting, own: int) -> tuple[int, ...]:
        asked.set()
        assert ended.wait(60)
        return own, 0

    monkeypatch.setattr(Meeting, "rooms", rooms)
    with working(task(source.root, tmp_path / "0", 0, 2)) as node:
        node.fetching.needs_rooms.set()
        assert asked.wait(60)  # so the node was still running when it asked
    ended.set()
    eventually(lambda: not any(thread.name == "dlio-rooms" for thread in threading.enumerate()))
    assert not node.plan.knows_rooms


def test_rooms_that_cannot_be_followed_at_first_are_followed_later(
    source: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node that cannot see at once which of the other files it has keeps them all in the end."""
    are_patient(monkeypatch)
    calls, lacking = list[Path](), LiveFolder.lacking

    def fails_once(self: LiveFolder, *given: Any) -> list[File]:
        calls.append(self.path)
        if calls.count(self.path) == 2:
            raise StorageError("EIO")
        return lacking(self, *given)

    monkeypatch.setattr(LiveFolder, "lacking", fails_once)
    with ExitStack() as stack:
        for node, percent in enumerate((20, 90)):
            given = task(source.root, tmp_path / str(node), node, 2, cache_bytes=source.num_bytes * percent // 100)
            found = stack.enter_context(working(given))
        eventually(lambda: is_complete(found))
        assert found.store.num_bytes > source.num_bytes * 3 // 4


def test_a_node_that_is_asked_looks_whether_it_owns_more_by_the_rooms(
    source: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who asks knows already that the owner has no room for the file."""
    are_patient(monkeypatch)
    waits, rooms = threading.Event(), (source.num_bytes, 0)
    monkeypatch.setattr(Meeting, "rooms", lambda self, own: rooms if waits.is_set() else None)
    with working(task(source.root, tmp_path / "0", 0, 2)) as node:
        number = next(each for each in range(16) if node.plan.home(each) == 1)
        assert node.fetching.is_home(number, 0, waits.set)


def test_an_order_that_is_told_while_an_agent_starts_is_followed(
    source: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order, write = list(range(15, -1, -1)), LiveFolder.write_record
    with ExitStack() as stack:

        def tells(self: LiveFolder, record: AgentRecord) -> None:
            write(self, record)
            stack.enter_context(closing(Client(self.staged))).order(order)

        monkeypatch.setattr(LiveFolder, "write_record", tells)
        monkeypatch.setattr(Fill, "start", lambda self: None)
        node = stack.enter_context(working(task(source.root, tmp_path / "0")))
        assert list(node.fill._pending[0]._order) == order


def test_a_node_answers_as_soon_as_it_listens(
    source: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = list[dict[str, Any]]()

    class AskedAtOnce(Server):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            told.append(self.stat())

    monkeypatch.setattr(engine, "Server", AskedAtOnce)
    with working(task(source.root, tmp_path / "0", 0, 2)):
        assert told[0]["nodes"][0]["total_bytes"] == source.num_bytes


def test_nodes_that_are_expected_are_looked_up_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So a thousand nodes that wait for one do not look for all of them all the time."""
    meet_in(tmp_path, monkeypatch)
    are_patient(monkeypatch)
    looked, find = list[int](), MeetingFolder.find

    def counted(self: MeetingFolder, node: int) -> Peer | None:
        looked.append(node)
        return find(self, node)

    monkeypatch.setattr(MeetingFolder, "find", counted)
    meeting = met(CONTENT, 3, 5)
    assert meeting.rooms(7) is meeting.rooms(7) is None and set(looked) == {4}
    for node, room in ((4, 11), (0, 12), (1, 13)):
        met(CONTENT, node, 5).tell(Peer(node, ("127.0.0.1", 9), Owner.current(), False, 0, 9, room=room))
    eventually(lambda: meeting.rooms(7) is None and 2 in looked)
    assert looked.count(0) == looked.count(1) == 1
    met(CONTENT, 2, 5).tell(Peer(2, ("127.0.0.1", 9), Owner.current(), False, 0, 9, room=14))
    eventually(lambda: meeting.rooms(7) == (12, 13, 14, 7, 11))
    assert looked.count(0) == looked.count(1) == 1


def test_the_room_of_a_process_that_was_killed_is_nobodys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An earlier run has left its record: its node is starting again, and may have other room."""
    meet_in(tmp_path, monkeypatch)
    are_patient(monkeypatch)
    dead = replace(Owner.current(), started=1)
    met(CONTENT, 1, 2).tell(before := Peer(1, ("127.0.0.1", 9), dead, False, 3, 9, room=3))
    meeting = met(CONTENT, 0, 2)
    assert meeting.rooms(7) is None
    met(CONTENT, 1, 2).tell(replace(before, owner=Owner.current(), room=9))
    eventually(lambda: meeting.rooms(7) == (7, 9))


@pytest.mark.parametrize("size", [100, SMALL_BYTES + 1])
@pytest.mark.parametrize("is_begun", [False, True])
def test_a_file_that_gets_its_name_while_more_is_to_be_kept_counts_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, is_begun: bool
) -> None:
    data, with_folder = b"x" * size, writing.with_folder
    listed = [File("a.bin", size, files.digest_bytes(data))]
    store, present = store_of(live := made_at(tmp_path), listed), list[int]()

    def named(root: str, path: str, make: Callable[[], T]) -> T:
        made = with_folder(root, path, make)
        if path == f"{live.staged.path}/a.bin":
            store.keep(plan_of(listed), ())  # it has its name, so it is not lacking
            present.append(store.present_bytes)
        return made

    monkeypatch.setattr(writing, "with_folder", named)
    if is_begun:
        store.missing(0, [(0, size)])
    store.write(0, 0, memoryview(data))
    if not store.is_finished(0):
        store.finish(0)
    assert [*present, store.present_bytes] == [size, size] and store.is_complete
