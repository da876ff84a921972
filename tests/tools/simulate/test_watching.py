"""The oracle of the simulator watches processes: which nodes they ask, when they continue, what memory they take."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import contextmanager, suppress
from functools import partial
from types import SimpleNamespace
from unittest import mock

import pytest

from dlio.stage.engine.fetch import Fetching
from dlio.stage.engine.fill import Fill
from dlio.stage.engine.running_digest import Held
from dlio.stage.engine.store import Store
from dlio.stage.meeting.meeting import Meeting
from dlio.stage.protocol import tcp
from tests.helpers.scene import Scene
from tools.simulate.process import Process
from tools.simulate.scheduler import MS, S
from tools.simulate.watching import most_buffers


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
