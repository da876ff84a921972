"""Nodes that exchange files list a folder once; if one dies, fails or sends nonsense, the others get the right list."""

from __future__ import annotations

import errno
import os
import time
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from glob import glob
from pathlib import Path
from threading import Barrier, Event
from types import SimpleNamespace
from typing import Any

import pytest

from dlio.cluster.topology import Topology
from dlio.errors import ManifestError, StorageError, UsageError
from dlio.io import world
from dlio.locking.owner import Owner
from dlio.stage.meeting import listing, meeting
from dlio.stage.meeting.folder import LISTED, MeetingFolder, meeting_folder
from dlio.stage.meeting.listing import ListOnce, by_processes
from dlio.stage.meeting.peer import Peer
from dlio.stage.protocol import serving, wire
from dlio.stage.protocol.wire import Op, Request, Status
from dlio.stage.sources.anything import TreeFolder, anything
from tests.helpers.forked import Forked
from tests.helpers.live import WAIT_SECONDS, are_patient, eventually, meet_in
from tests.helpers.staging import node
from tests.helpers.trees import make_tree

Listed = Future[bytes]


class Nodes:
    """Nodes of a job that list a folder, each in a thread; `listed` are those that have listed it themselves."""

    def __init__(self, tree: Path, count: int) -> None:
        self.tree, self.count = tree, count
        self.listed = list[int]()
        self.contexts = ExitStack()
        self._threads = self.contexts.enter_context(ThreadPoolExecutor())

    def table(self, rank: int, list_once: ListOnce) -> bytes:
        """Returns the list that node `rank` gets."""

        def noted(path: Path, make: Callable[[], bytes]) -> bytes:
            return list_once(path, lambda: self.listed.append(rank) or make())

        source = anything(self.tree, noted)
        assert isinstance(source, TreeFolder)
        return source.table

    def start(self, rank: int, make: Callable[[], bytes] | None = None, topology: Topology | None = None) -> Listed:
        """Returns the list that a process of a node will get, which answers others until the end of the test."""
        where = topology or node(rank, self.count)
        list_once = self.contexts.enter_context(by_processes(where, by_folder=True))
        found = self._threads.submit(*(list_once, self.tree, make) if make else (self.table, rank, list_once))
        if not where.local_rank:
            self.wait_for(rank, found)
        return found

    def wait_for(self, rank: int, found: Listed | None = None) -> None:
        """Waits until others can find a node."""
        record = str(meeting_folder("").parent / f"*{LISTED}-*/*-{rank}of{self.count}.json")
        eventually(lambda: bool((found and found.done()) or glob(record)))  # noqa: PTH207 - its folder may just be removed


@pytest.fixture
def nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], Nodes]]:
    """Makes nodes that meet in a folder, and list another; none is taken for lost because it is slow."""
    meet_in(tmp_path / "meet", monkeypatch)
    are_patient(monkeypatch)
    with ExitStack() as stack:

        def make(count: int) -> Nodes:
            found = Nodes(make_tree(tmp_path / "env"), count)
            stack.push(found.contexts.__exit__)
            return found

        yield make


def test_one_of_three_nodes_lists_for_all(nodes: Callable[[int], Nodes], tmp_path: Path) -> None:
    three = nodes(3)
    found = [three.start(rank) for rank in (2, 1, 0)]
    assert {each.result() for each in found} == {TreeFolder(three.tree).table}
    assert three.listed == [0]
    three.contexts.close()
    assert not list((tmp_path / "meet").rglob("*" + LISTED + "*")), "nothing is left where they met"


def test_a_late_node_gets_a_list_of_now(nodes: Callable[[int], Nodes], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meeting, "JOIN_SECONDS", 0.0)
    two = nodes(2)
    assert two.start(0).result() == TreeFolder(two.tree).table
    (two.tree / "new").write_text("since then")
    assert two.start(1).result() == TreeFolder(two.tree).table
    assert two.listed == [0, 0]


def test_other_processes_of_a_node_ask_its_first(
    nodes: Callable[[int], Nodes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "_LAST_SECONDS", WAIT_SECONDS)
    two = nodes(2)
    second = two.start(0, topology=Topology(1, 3, 1, 2, 0, 2))  # comes before the first, and waits for it
    first, other = two.start(0, topology=Topology(0, 3, 0, 2, 0, 2)), two.start(1, topology=Topology(2, 3, 0, 1, 1, 2))
    assert first.result() == second.result() == other.result()
    assert two.listed == [0]


def test_processes_that_never_ask_hold_up_nobody(
    nodes: Callable[[int], Nodes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(meeting, "JOIN_SECONDS", 1000.0)
    two = nodes(2)
    found = [two.start(rank, topology=Topology(8 * rank, 16, 0, 8, rank, 2)) for rank in range(2)]
    assert {each.result() for each in found} == {TreeFolder(two.tree).table}


def _dies(context: Path) -> None:
    """Lists as node 0, and dies as soon as another node has asked."""

    def make() -> bytes:
        os._exit(7)

    with by_processes(node(0, 2), by_folder=True) as list_once:
        list_once(context, make)


def test_a_node_that_dies_is_replaced(nodes: Callable[[int], Nodes], monkeypatch: pytest.MonkeyPatch) -> None:
    two = nodes(2)
    child = Forked(partial(_dies, two.tree))
    two.wait_for(0)
    monkeypatch.setattr(meeting, "JOIN_SECONDS", 0.0)
    assert two.start(1).result() == TreeFolder(two.tree).table
    assert child.wait() == 7 and two.listed == [1]


def test_a_node_that_is_at_it_for_ever_is_replaced(
    nodes: Callable[[int], Nodes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(meeting, "JOIN_SECONDS", 0.0)
    monkeypatch.setattr(listing, "_PATIENCE_SECONDS", 0.1)
    monkeypatch.setattr(wire, "BEAT_SECONDS", 0.05)
    two, hangs = nodes(2), Event()
    first = two.start(0, lambda: str(hangs.wait(60)).encode())
    try:
        assert two.start(1).result() == TreeFolder(two.tree).table
    finally:
        hangs.set()
    assert first.result() == b"True" and two.listed == [1]


def test_what_is_wrong_with_the_folder_is_an_error_of_all(nodes: Callable[[int], Nodes]) -> None:
    three = nodes(3)
    os.mkfifo(three.tree / "pipe")
    found = [three.start(rank) for rank in range(3)]
    assert [type(each.exception()) for each in found] == [UsageError] * 3, "and so the exit code"
    (problem,) = {str(each.exception()) for each in found}
    assert "pipe is a pipe: only files, folders and links are staged" in problem
    assert three.listed == [0]


def _failing(rank: int, monkeypatch: pytest.MonkeyPatch) -> Callable[[], bytes]:
    """Returns what fails to list a folder on a node; then no other node is expected any more."""

    def fail() -> bytes:
        monkeypatch.setattr(meeting, "JOIN_SECONDS", 0.0)
        raise StorageError(errno.EIO, f"node {rank} cannot list env: Input/output error")

    return fail


def test_a_node_that_cannot_read_the_folder_is_replaced_by_the_next(
    nodes: Callable[[int], Nodes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own client of the file system may be at fault: then the folder is listed once more, and not by all."""
    three = nodes(3)
    first, second, third = (three.start(n, _failing(n, monkeypatch) if n != 1 else None) for n in range(3))
    assert "node 0 cannot list env" in str(first.exception())
    assert second.result() == third.result() == TreeFolder(three.tree).table
    assert set(three.listed) == {1}


def test_a_folder_that_no_node_can_read_is_an_error_of_each(
    nodes: Callable[[int], Nodes], monkeypatch: pytest.MonkeyPatch
) -> None:
    three = nodes(3)
    found = [three.start(rank, _failing(rank, monkeypatch)) for rank in range(3)]
    assert [f"node {rank} cannot list env" in str(each.exception()) for rank, each in enumerate(found)] == [True] * 3


@pytest.mark.parametrize(
    "body",
    [b"not compressed", zlib.compress(bytes(2000)), zlib.compress(bytes(500))[:-1], b""],
    ids=["damaged", "too long", "cut off", "empty"],
)
def test_a_list_that_is_none_is_not_taken(
    nodes: Callable[[int], Nodes], monkeypatch: pytest.MonkeyPatch, body: bytes
) -> None:
    two = nodes(2)
    place = MeetingFolder(_place(two.tree), 0, 2)
    listener = place.listener(_place(two.tree).name[-32:])

    def prepare(peer: Any, request: Request, client: bytes) -> Callable[[], None]:
        assert request == Request(Op.LIST)
        return lambda: wire.send_reply(peer, Status.OK, body)

    with ExitStack() as stack:
        stack.callback(serving.Serving([listener], prepare).close)
        place.tell(Peer(0, listener.address, Owner.current(), False, 0, 0))
        monkeypatch.setenv("DLIO_MAX_MANIFEST", "1000")
        monkeypatch.setattr(meeting, "JOIN_SECONDS", 0.0)
        expected = b"a list that this node makes"
        assert two.start(1, lambda: expected).result() == expected


def _place(tree: Path, count: int = 2) -> Path:
    """Returns the folder where nodes meet to list another."""
    found = list[Path]()

    def note(content: str, kind: str) -> Path:
        found.append(meeting_folder(content, kind=kind))
        raise EOFError

    with pytest.MonkeyPatch.context() as patch, by_processes(node(0, count), by_folder=True) as list_once:
        patch.setattr(listing, "meeting_folder", note)
        with pytest.raises(EOFError):
            list_once(tree, bytes)
    return found[0]


def test_the_list_of_another_folder_is_refused(tmp_path: Path) -> None:
    one, other = make_tree(tmp_path / "one"), make_tree(tmp_path / "other")
    with pytest.raises(ManifestError, match=f"another process has listed something else than {one}: stage again"):
        anything(one, lambda path, make: TreeFolder(other).table)


def test_a_single_file_is_not_asked_for(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    found = anything(tmp_path / "file", lambda path, make: pytest.fail("asked"))
    assert found.manifest.num_bytes > 1


def test_the_node_that_lists_leaves_after_all_that_it_answers(
    nodes: Callable[[int], Nodes], monkeypatch: pytest.MonkeyPatch
) -> None:
    two, leaves = nodes(2), Event()
    plain_close, plain_send = listing._Lists.close, wire.send_reply

    def close(self: listing._Lists) -> None:
        leaves.set()
        plain_close(self)

    def send_late(peer: Any, status: Status, *body: Any, **more: Any) -> None:
        if status == Status.OK:
            assert leaves.wait(60)
            time.sleep(0.1)  # by now it would have left
        plain_send(peer, status, *body, **more)

    monkeypatch.setattr(listing._Lists, "close", close)
    monkeypatch.setattr(wire, "send_reply", send_late)
    first, second = two.start(0), two.start(1)
    first.result()
    two.contexts.close()
    assert second.result() == first.result() and two.listed == [0]


def test_a_node_asks_three_others_at_most(nodes: Callable[[int], Nodes], monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a thousand that are lost, each takes seconds."""
    many, asked = nodes(12), list[object]()

    def refuse(address: object, *_: object) -> None:
        asked.append(address)
        raise ConnectionRefusedError

    monkeypatch.setattr(meeting, "JOIN_SECONDS", 0.0)
    monkeypatch.setattr(listing.tcp, "connect", refuse)
    place = _place(many.tree, 12)
    for rank in range(11):
        MeetingFolder(place, rank, 12).tell(Peer(rank, ("127.0.0.1", rank), Owner.current(), False, 0, 0))
    assert many.start(11).result() == TreeFolder(many.tree).table
    assert len(set(asked)) == len(asked) == 3


class Gathering:
    """What MPI does for processes, here threads that gather their values."""

    def __init__(self, size: int) -> None:
        self._values, self._barrier = [None] * size, Barrier(size)

    def run(self, make: Callable[[], bytes], *, is_over: bool = False) -> list[Future[bytes]]:
        """Returns what each process gets, if rank 0 lists a folder so, or takes no part in that."""
        ranks = range(len(self._values))
        with ThreadPoolExecutor(len(ranks)) as threads:
            return [threads.submit(self._list, rank, make, is_over and not rank) for rank in ranks]

    def _list(self, rank: int, make: Callable[[], bytes], is_over: bool) -> bytes:
        def gather(kind: str, value: Any) -> list[Any]:
            assert kind == "list"
            self._values[rank] = value
            self._barrier.wait(60)
            found = list(self._values)
            self._barrier.wait(60)
            return found

        if is_over:
            gather("list", None)
            return b""
        everyone: Any = SimpleNamespace(rank=rank, gather=gather)
        return listing._gathered(everyone, make)


def test_processes_of_mpi_get_what_rank_0_lists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long it takes: each round of MPI ends soon."""
    monkeypatch.setattr(listing, "_ROUND_SECONDS", 0.01)
    tree = make_tree(tmp_path / "env")

    def make() -> bytes:
        time.sleep(0.1)
        return TreeFolder(tree).table

    assert {each.result() for each in Gathering(3).run(make)} == {TreeFolder(tree).table}


def test_processes_of_mpi_all_say_what_rank_0_could_not() -> None:
    def make() -> bytes:
        raise StorageError("env/x cannot be read")

    first, *others = Gathering(3).run(make)
    assert str(first.exception()) == "env/x cannot be read"
    assert {str(each.exception()) for each in others} == {f"{world.host()}: env/x cannot be read"}
    _, *others = Gathering(2).run(make, is_over=True)
    with pytest.raises(StorageError, match="process 0 of the job has ended before it had listed the folder"):
        others[0].result()
