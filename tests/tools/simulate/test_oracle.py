"""The oracle of the simulator detects broken promises."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest

from dlio.dataset.manifest import NAME
from dlio.locking import claim
from dlio.locking.claim_file import Claim
from dlio.stage.copies.base_folder import CACHE, CONTROL, LEASES
from dlio.stage.copies.folder import LIVE
from dlio.stage.copies.live_folder import FILES
from dlio.stage.engine.fetch import Fetching
from dlio.stage.engine.fill import Fill
from dlio.stage.engine.running_digest import Held
from dlio.stage.engine.store import Store
from dlio.stage.meeting.meeting import Meeting
from dlio.stage.protocol import tcp
from tools.simulate.clock import Clock
from tools.simulate.data_set import DataSet
from tools.simulate.durable import Durable
from tools.simulate.oracle import GIVEN_BACK, PACE, PATIENCE, Oracle
from tools.simulate.orders import Orders
from tools.simulate.process import Process
from tools.simulate.scheduler import MS, S, Scheduler
from tools.simulate.source import Source
from tools.simulate.storage import Storage
from tools.simulate.watching import Watching, most_buffers


class Scene:
    """A source, and a node with a copy."""

    def __init__(self, base: Path) -> None:
        self.scheduler = Scheduler(0)
        self.storage = Storage(self.scheduler, base)
        shared = self.storage.add("source", Clock(self.scheduler))
        self.disk = self.storage.add("node0", Clock(self.scheduler))
        self.data = DataSet(shared.root, [50_000, 60_000])
        self.source = Source(self.scheduler, self.data, shared)
        self.oracle = Oracle(self.scheduler, self.data.contents, self.source, 3)
        self.watching = Watching(self.scheduler, self.oracle)
        self.storage.listeners += [self.source.note, self.oracle.called]
        for node in range(3):
            self.oracle.causes.comes(node)
        self.copy = self.disk.root / CACHE / "copy"
        (self.copy / CONTROL).mkdir(parents=True)
        (self.copy.parent / LEASES).mkdir()
        (self.copy.parent / LEASES / "copy@1").touch()

    def process(self, node: int = 0) -> Process:
        """Returns a new process."""
        return self.scheduler.process(node, 100, "boot", f"node{node}", len(self.scheduler.processes))

    def do(self, call: Callable[[], object], process: Process | None = None) -> None:
        """Runs a call as a task, by default of its own process."""
        task = self.scheduler.spawn(process or self.process(), call, "task")
        self.scheduler.run()
        if task.error:
            raise task.error

    def name(self, name: str, data: bytes) -> None:
        """Gives a file its final name."""
        (self.copy / CONTROL / name).write_bytes(data)
        self.do(lambda: self.storage.replace(self.copy / CONTROL / name, self.copy / name))

    @property
    def broken(self) -> list[str]:
        return [violation.promise for violation in self.oracle.violations]


@pytest.fixture(name="scene")
def _scene(tmp_path):
    return Scene(tmp_path)


def whole(scene: Scene) -> None:
    for name, data in scene.data.contents.items():
        scene.name(name, data)
    (scene.copy / NAME).touch()
    scene.oracle.published(scene.copy, frozenset(scene.data.contents))


def test_right_bytes_are_fine_and_wrong_ones_are_not(scene):
    name, data = next(iter(scene.data.contents.items()))
    assert scene.oracle.delivered("loader", name, 100, 200, data[100:200])
    assert not scene.broken
    assert not scene.oracle.delivered("loader", name, 101, 201, data[100:200])
    assert scene.broken == ["right-bytes"]
    assert str(scene.oracle.violations[0]).startswith("right-bytes at 0.000000 s: no byte is delivered that is not")


def test_a_wrong_file_is_noticed_when_it_gets_its_name(scene):
    whole(scene)
    assert not scene.broken
    scene.name(next(iter(scene.data.contents)), b"wrong")
    assert scene.broken == ["proved-name"]


@pytest.mark.parametrize("syncs", [[True], [False], [], [False, True]])  # whether each succeeds
def test_a_file_that_is_not_on_the_disk_when_it_gets_its_name_is_noticed(scene, syncs):
    durable = scene.disk.durable = Durable(scene.disk.root)
    name, data = next(iter(scene.data.contents.items()))
    unfinished = scene.copy / CONTROL / name
    unfinished.write_bytes(data)
    for succeeds in syncs:
        with unfinished.open("rb") as file:
            (durable.synced if succeeds else durable.failed)(file.fileno())
    scene.do(lambda: scene.storage.replace(unfinished, scene.copy / name))
    durable.close()
    assert scene.broken == ([] if syncs == [True] else ["proved-name"])


def test_a_copy_that_lacks_a_file_is_noticed(scene):
    whole(scene)
    scene.oracle.check_copies(scene.disk)
    assert not scene.broken
    (scene.copy / next(iter(scene.data.contents))).unlink()
    scene.oracle.check_copies(scene.disk)
    assert scene.broken == ["whole-copy", "kept-copy"]


def test_a_finished_copy_of_which_nothing_is_left_is_noticed(scene):
    whole(scene)
    shutil.rmtree(scene.copy.parent)
    scene.oracle.check_copies(scene.disk)
    assert scene.broken == ["kept-copy"]


def test_a_part_that_an_agent_has_published_is_to_stay(scene):
    first, second = scene.data.contents
    scene.name(first, scene.data.contents[first])
    with scene.oracle.publishing(scene.copy, [first]):
        (scene.copy / NAME).touch()
        scene.oracle.check_copies(scene.disk)
    scene.oracle.check_copies(scene.disk)
    assert not scene.broken
    (scene.copy / NAME).unlink()
    scene.oracle.check_copies(scene.disk)
    assert scene.broken == ["kept-copy"]
    with scene.oracle.publishing(scene.copy, [first, second]):
        (scene.copy / NAME).touch()
        scene.oracle.check_copies(scene.disk)
        assert scene.broken == ["kept-copy", "whole-copy", "kept-copy"]


def test_the_latest_change_is_the_end_of_a_fault_or_the_begin_of_one_that_has_none(scene):
    causes = scene.oracle.causes
    assert causes.latest == 0
    scene.scheduler.now = 3 * S
    causes.begin("gone", {1})
    causes.begin("cut", {1, 2}).end = 20 * S
    assert causes.latest == 20 * S
    scene.scheduler.now = 30 * S
    causes.comes(2)  # again
    causes.happened("failure", {2})
    assert causes.latest == 20 * S
    causes.comes(3)
    assert causes.latest == 30 * S


def test_a_finished_copy_without_a_lease_is_noticed(scene):
    (scene.copy.parent / LEASES / "copy@1").unlink()
    whole(scene)
    assert scene.broken == ["leased-copy"]


def read(scene: Scene, node: int, at: int, process: Process | None = None) -> None:
    """Makes a node, by a new process if none is given, read a part of the first file at a time."""

    def work() -> None:
        scene.scheduler.pause(at - scene.scheduler.now)
        descriptor = scene.storage.open(scene.data.manifest.root / next(iter(scene.data.contents)), os.O_RDONLY)
        scene.storage.pread(descriptor, 40_000, 0)
        os.close(descriptor)

    scene.do(work, process or scene.process(node))


def test_a_second_read_of_the_source_needs_a_cause(scene):
    read(scene, 0, 1 * S)
    scene.oracle.check_reads()
    assert not scene.broken
    assert scene.source.bytes_read == 40_000
    read(scene, 1, 2 * S)
    scene.oracle.check_reads(is_shared=False)
    assert not scene.broken
    scene.oracle.check_reads()
    assert scene.broken == ["read-once"]
    assert "node 1 read block 0 of shard-00000.bin at 2.000" in scene.oracle.violations[0].found


@pytest.mark.parametrize(
    ("node", "ends", "at", "is_fine"),
    [
        (0, 5, 6, True),  # the node that had it was cut off a short time ago
        (2, 5, 6, True),  # another one was: not all of them know it yet
        (0, 300, 200, True),  # it is cut off still
        (2, 300, 200, False),  # another one is, which all know by now
        (0, 5, 60, False),  # it is back for long
    ],
)
def test_a_cause_concerns_who_has_read_and_is_over_after_a_while(scene, node, ends, at, is_fine):
    read(scene, 0, 1 * S)
    trouble = scene.oracle.causes.begin("isolate", {node})
    read(scene, 1, at * S)
    trouble.end = ends * S
    scene.oracle.check_reads()
    assert scene.broken == ([] if is_fine else ["read-once"])


def test_a_process_reads_again_a_file_of_which_wrong_bytes_came(scene):
    name = next(iter(scene.data.contents))
    read(scene, 0, 60 * S)
    read(scene, 1, 61 * S)
    scene.oracle.check_reads(distrusted={(scene.scheduler.processes[1], name)})
    assert not scene.broken
    scene.oracle.check_reads(distrusted={(scene.scheduler.processes[0], name)})
    assert scene.broken == ["read-once"]


@pytest.mark.parametrize(
    ("kind", "home", "later", "is_fine"),
    [
        ("kill", 0, 6, True),  # not all know yet that a third node is back
        ("disk-hang", 0, 6, True),  # it may have kept that node from coming, or from answering
        ("disk-slow", 0, 6, False),  # it concerns neither who reads nor the home
        ("disk-slow", 2, 6, True),  # the home is slow: each of the others reads for itself
        ("kill", 1, 200, True),  # the home was lost, and does not know who has read instead
        ("kill", 0, 200, False),
        ("disk-slow", 1, 200, False),
    ],
)
def test_a_fault_of_a_third_node_is_a_cause_if_it_seems_lost(scene, kind, home, later, is_fine):
    read(scene, 0, 4 * S)
    scene.oracle.causes.begin(kind, {2}).end = 5 * S
    scene.oracle.causes.troubles[0].begin = 3 * S
    read(scene, 1, later * S)
    scene.oracle.check_reads(lambda name, begin: home)
    assert scene.broken == ([] if is_fine else ["read-once"])


@pytest.mark.parametrize(("kind", "is_fine"), [("cut", False), ("disk-full", True)])
def test_a_process_reads_again_what_it_could_not_keep_only(scene, kind, is_fine):
    process = scene.process()
    scene.oracle.causes.begin(kind, {0})
    for at in (4, 5):
        read(scene, 0, at * S, process)
    scene.oracle.check_reads()
    assert scene.broken == ([] if is_fine else ["read-once"])
    scene.oracle.check_reads(kept={*scene.data.contents})
    assert len(scene.broken) == (not is_fine)


@pytest.mark.parametrize(("stopped", "is_fine"), [(0, False), (43, True)])
def test_a_process_that_is_stopped_reads_again_later_what_it_could_not_keep(scene, stopped, is_fine):
    process = scene.process()
    scene.oracle.causes.begin("stop", {0}).end = 50 * S
    scene.oracle.causes.troubles[0].begin = (50 - stopped) * S
    scene.oracle.causes.begin("disk-stale", {0}).end = 8 * S
    scene.oracle.causes.troubles[1].begin = 7 * S
    for at in (6, 51):
        read(scene, 0, at * S, process)
    scene.oracle.check_reads()
    assert scene.broken == ([] if is_fine else ["read-once"])


def test_each_node_reads_for_itself_what_only_a_lost_node_kept(scene):
    name = next(iter(scene.data.contents))
    scene.oracle.causes.begin("gone", {2})
    for node in (0, 1):
        read(scene, node, (100 + node) * S)
    scene.oracle.check_reads(lambda *_: 2, kept={name})
    assert not scene.broken
    scene.oracle.check_reads(lambda *_: 1, kept={name})
    assert scene.broken == ["read-once"]


def test_each_node_reads_for_itself_while_the_node_that_keeps_it_has_ended(scene):
    name = next(iter(scene.data.contents))
    read(scene, 2, 1 * S)
    for process in scene.scheduler.processes:
        process.kill()
    for node in (0, 1):
        read(scene, node, (100 + node) * S)
    scene.oracle.check_reads(lambda *_: 2, kept={name})
    assert not scene.broken
    scene.scheduler.now = 200 * S
    scene.process(2)
    read(scene, 0, 300 * S)
    scene.oracle.check_reads(lambda *_: 2, kept={name})
    assert scene.broken == ["read-once"]


@pytest.mark.parametrize(("again", "is_fine"), [(0, True), (50, False), (80, True)])
def test_each_node_reads_for_itself_while_the_node_that_keeps_it_is_gone_again(scene, again, is_fine):
    """It has come again after it had the block, and found it there; then it was killed, too."""
    name = next(iter(scene.data.contents))
    read(scene, 2, 1 * S)
    scene.scheduler.processes[-1].kill()
    scene.oracle.causes.comes(2)
    found = scene.process(2)
    scene.scheduler.now = 3 * S
    scene.oracle.causes.happened("kill", {2})
    found.kill()
    if again:
        scene.scheduler.now = again * S
        scene.process(2)
    for node in (0, 1):
        read(scene, node, (100 + node) * S)
    scene.oracle.check_reads(lambda *_: 2, kept={name})
    assert scene.broken == ([] if is_fine else ["read-once"])


def test_a_keeper_that_never_came_excuses_no_second_read(scene):
    name = next(iter(scene.data.contents))
    for node in (0, 1):
        read(scene, node, (100 + node) * S)
    scene.oracle.check_reads(lambda *_: 7, kept={name})
    assert scene.broken == ["read-once"]


def test_who_comes_when_all_have_left_reads_again(scene):
    read(scene, 0, 1 * S)
    scene.oracle.causes.comes(1)
    read(scene, 1, 50 * S)
    for process in scene.scheduler.processes:
        process.kill()
    scene.scheduler.now = 70 * S
    scene.oracle.causes.comes(2)
    read(scene, 2, 71 * S)
    scene.oracle.check_reads()
    assert scene.broken == ["read-once"]
    assert "node 1 read" in scene.oracle.violations[0].found
    scene.source.reads = {block: reads[1:] for block, reads in scene.source.reads.items()}
    scene.oracle.check_reads()
    assert len(scene.broken) == 1


def test_two_processes_that_fill_a_copy_in_turn_are_noticed(scene):
    path = scene.copy / CONTROL / LIVE / FILES / "shard-00000.bin"
    path.parent.mkdir(parents=True)

    def write() -> None:
        descriptor = scene.storage.open(path, os.O_WRONLY | os.O_CREAT)
        scene.storage.pwrite(descriptor, b"x", 0)
        os.close(descriptor)

    one, other = scene.process(), scene.process()
    for process in (one, one, other, other):
        scene.do(write, process)
    assert not scene.broken
    scene.do(write, one)
    assert scene.broken == ["one-at-work"]


def test_a_job_that_takes_long_though_nothing_is_wrong_is_noticed(scene):
    scene.oracle.check_pace(PACE)
    assert not scene.broken
    scene.oracle.check_pace(PACE + 1)
    assert scene.broken == ["pace"]
    scene.oracle.causes.happened("kill", {0})
    scene.oracle.check_pace(PACE + 1)
    assert len(scene.broken) == 1


def test_an_agent_that_outlives_its_job_is_noticed(scene):
    scene.scheduler.now = GIVEN_BACK + 1
    scene.oracle.check_given_back(1)
    assert not scene.broken
    scene.oracle.check_given_back(0)
    assert scene.broken == ["given-back"]
    scene.oracle.causes.happened("stop", {0})
    scene.oracle.check_given_back(0)
    assert len(scene.broken) == 1


def test_a_node_that_sends_more_than_its_share_is_noticed(scene):
    scene.watching.sent_bytes.update({0: 200, 1: 0})
    scene.watching.check_shares([100, 0, 0])
    assert not scene.broken
    scene.watching.check_shares([99, 0, 0])
    assert scene.broken == ["share"]


@contextmanager
def connecting(scene: Scene, process: Process, connect: Callable[[object], None], times: Iterable[float]):
    """Has a process ask a node at these seconds, each time by a new connection, while the oracle watches."""

    def ask(at: float) -> None:
        scene.scheduler.pause(round(at * S))
        with suppress(ConnectionRefusedError, TimeoutError):
            Fetching.fetch(None, 0, 0, None)

    with (
        mock.patch.object(Fetching, "fetch", lambda *_: tcp.connect(("10.0.0.1", 1))),
        mock.patch.object(tcp, "connect", connect),
        scene.watching.at_work(),
    ):
        for at in times:
            scene.scheduler.spawn(process, partial(ask, at), "task")
        yield


@pytest.mark.parametrize(
    ("second", "heard", "asks", "third", "is_fine"),
    [
        (0.5, 9.0, [], 2.7, False),  # soon after two attempts at the same time have failed
        (0.5, 9.0, [], 7.0, True),  # the first of them had failed 5 s ago
        (0.5, 2.6, [], 2.7, True),  # it has answered since, on another connection
        (0.5, 2.1, [], 2.7, False),  # it had answered before the second one failed
        (0.5, 9.0, [2.6], 2.7, True),  # it has asked for the first time since
        (0.5, 9.0, [1.0, 2.6], 2.7, False),  # it had asked before
    ],
)
def test_a_node_that_is_silent_is_not_asked_again_at_once(scene, second, heard, asks, third, is_fine):
    def silent(address: object) -> None:
        scene.scheduler.pause(2 * S)
        raise TimeoutError

    def hear() -> None:
        scene.scheduler.pause(round(heard * S))
        Meeting.use(None, peer, None)

    def be_asked(at: float) -> None:
        scene.scheduler.pause(round(at * S))
        Meeting.heard(SimpleNamespace(_other=lambda _: SimpleNamespace(peer=peer)), 1)

    peer, process = SimpleNamespace(address=("10.0.0.1", 1)), scene.process()
    with (
        mock.patch.object(Meeting, "use", lambda *_: None),
        mock.patch.object(Meeting, "heard", lambda *_: None),
        connecting(scene, process, silent, (0.0, second, third)),
    ):
        for at in asks:
            scene.scheduler.spawn(process, partial(be_asked, at), "task")
        scene.scheduler.spawn(process, hear, "task")
        scene.scheduler.run()
    assert scene.broken == ([] if is_fine else ["left-alone"])


def test_a_node_that_refuses_answers(scene):
    """It has been started again, and may be asked at once, though an attempt that began before it did fails later."""

    def connect(address: object) -> None:
        if scene.scheduler.now == 2 * S:
            raise ConnectionRefusedError
        scene.scheduler.pause(2 * S)
        raise TimeoutError

    with connecting(scene, scene.process(), connect, (0.5, 2.0, 2.7, 4.8)):
        scene.scheduler.run()
    assert scene.broken == ["left-alone"]  # the last one, soon after the one before it has failed


def test_waiting_for_long_and_for_ever_are_noticed(scene):
    def wait() -> None:
        with scene.oracle.patience("loader"):
            scene.scheduler.pause(PATIENCE + S)

    scene.do(wait)
    assert scene.broken == ["patience"]
    scene.oracle.end([], 0)
    scene.oracle.end(["loader 0"], 0)
    assert scene.broken == ["patience", "end"]


@pytest.mark.parametrize("seed", range(4))
def test_ranks_that_take_other_samples_than_planned_are_noticed(scene: Scene, seed: int) -> None:
    orders = Orders(seed, scene.data.manifest, 3)  # of 7 samples
    for rank in (0, 1, 1):  # one of them was started again
        for number, step in enumerate(orders.steps(0, rank, 3)):
            scene.oracle.took(orders.take(rank, 0, number, step))
    assert not scene.broken
    assert orders.lacking([0]).startswith("no rank took sample")
    assert "ranks 0 and 2 took" in orders.take(2, 0, 0, orders.steps(0, 0, 3)[0])
    for number, step in enumerate(orders.steps(0, 2, 3)):
        assert not orders.take(2, 0, number, step)
    assert not orders.lacking([0])
    scene.oracle.took(orders.take(0, 1, 0, orders.steps(2, 0, 3)[0]) or orders.take(1, 1, 1, orders.steps(1, 1, 3)[0]))
    assert scene.broken == ["planned-order"]


def test_errors_without_a_fault_are_noticed(scene):
    scene.oracle.failed("loader: no", 1)
    assert scene.broken == ["no-error"]
    scene.oracle.causes.happened("kill", {0})
    scene.oracle.failed("loader: no", 1)
    assert len(scene.broken) == 1


def test_a_thread_that_ends_by_an_exception_is_noticed(scene):
    with pytest.raises(ZeroDivisionError):
        scene.do(lambda: 1 // 0)
    scene.oracle.check_crashes()
    assert scene.broken == ["no-crash"]


@pytest.mark.parametrize("lives", [True, False])
def test_who_takes_the_claim_of_a_living_process_is_noticed(scene, lives):
    owner = mock.Mock(is_alive=lambda: lives)
    taken = Claim(2, owner, "b"), Claim(1, owner, "a")
    with mock.patch.object(claim, "_wait_for_claim", lambda *_: taken), scene.watching.at_work():
        scene.do(lambda: claim._wait_for_claim(None, None, True))
    assert scene.broken == (["one-at-work"] if lives else [])


@pytest.mark.parametrize(("owner", "name"), [(Fill, "_cleared"), (Fetching, "distrust")])
def test_who_asks_others_for_what_was_wrong_is_noticed(scene, owner, name):
    process = scene.process()
    with (
        mock.patch.object(Fetching, "_from_peers", lambda *_: True),
        mock.patch.object(owner, name, lambda *_: True),
        scene.watching.at_work(),
    ):
        for _ in range(2):
            assert not scene.broken
            scene.do(lambda: Fetching._from_peers(None, None, 3, 0, memoryview(b""), True), process)
            scene.do(lambda: getattr(owner, name)(None, 3), process)
    assert scene.broken == ["from-source"]


@pytest.mark.parametrize(
    ("span", "until", "is_fine"),
    [
        ((5, 9), 85, True),  # ms: the write of bytes 0 to 9 has just ended
        ((5, 9), 95, False),
        ((5, 9), 60, True),  # it has not ended, and its bytes may be seen
        ((12, 15), 60, False),  # they are others: those awaited came after 5 ms
        ((9, 11), 60, False),  # they lie next to them
        ((11, 12), 60, False),
    ],
)
def test_a_reader_that_continues_late_is_noticed(scene, span, until, is_fine):
    def write(store: object, number: int, begin: int, data: memoryview) -> None:
        scene.scheduler.pause(5 * MS if begin else 60 * MS)

    def do() -> None:
        Store.write(None, 3, 11, memoryview(b"others"))
        scene.scheduler.pause(5 * MS)
        Store.write(None, 3, 0, memoryview(b"the first"))

    process = scene.process()
    with (
        mock.patch.object(Store, "write", write),
        mock.patch.object(Fill, "need", lambda *_: scene.scheduler.pause(until * MS)),
        scene.watching.at_work(),
    ):
        scene.scheduler.spawn(process, do, "writer")
        scene.do(lambda: Fill.need(None, 3, [span]), process)
    assert scene.broken == ([] if is_fine else ["waking"])


def test_memory_is_counted(scene):
    from dlio.stage.engine.writing import Buffers

    def take(count: int) -> None:
        buffers = Buffers()
        taken = [buffers.take() for _ in range(count)]
        for each in taken:
            buffers.give_back(each)

    with scene.watching.at_work():
        scene.do(lambda: take(most_buffers()))
        assert not scene.broken
        scene.do(lambda: take(most_buffers() + 1))
    assert scene.broken == ["memory"]


@pytest.mark.parametrize(("put", "is_fine"), [(Held.put, True), (lambda *_: None, False)])
def test_pieces_that_are_held_without_bound_are_noticed(scene, monkeypatch, put, is_fine):
    digest, held = mock.Mock(counted=0), Held()
    monkeypatch.setattr(Held, "put", put)

    def hold(begins: range) -> None:
        for begin in begins:
            held.put(digest, begin, memoryview(b"piece"), lambda: None)

    with scene.watching.at_work():
        scene.do(lambda: hold(range(held._most)))
        assert not scene.broken
        scene.do(lambda: hold(range(held._most, 2 * held._most)))
    assert (not scene.broken) == is_fine
    assert set(scene.broken) <= {"memory"}


def test_a_changed_source_has_its_bytes_again_when_it_is_healed(scene):
    path = scene.data.manifest.root / next(iter(scene.data.contents))
    before = path.read_bytes(), path.stat().st_mtime_ns
    for kind in ("changed", "gone"):
        scene.source.spoil(kind, 0)
        assert not path.exists() or path.read_bytes() != before[0]
        scene.source.mend()
        assert (path.read_bytes(), path.stat().st_mtime_ns) == before
