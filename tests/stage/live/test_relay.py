"""Requests that are passed through wait for their turn, and only for their turn."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from dlio.dataset.manifest import File
from dlio.errors import MissingError, StorageError
from dlio.io import world
from dlio.stage.engine import server
from dlio.stage.engine.server import Relay
from dlio.stage.protocol import wire
from dlio.stage.protocol.wire import Op, Origin, Request
from tests.helpers.live import FetchedBy


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "GIVE_UP_SECONDS", 0.5)
    monkeypatch.setattr(wire, "BEAT_SECONDS", 0.05)


def _relay(fetch: Callable[[int, int, memoryview, bool], Origin]) -> Relay:
    return Relay(FetchedBy(fetch, [File("a.bin", 3, "")]))


def test_a_slow_source_that_answers_is_not_taken_for_silent() -> None:
    def fetch(number: int, begin: int, target: memoryview, only_source: bool) -> Origin:
        time.sleep(0.1)
        target[:] = bytes([number]) * len(target)
        return Origin.SOURCE

    passes = _relay(fetch)
    with ThreadPoolExecutor(24) as threads:
        found = [
            threads.submit(passes.read, Request(Op.READ, number, ((0, 1), (1, 2), (2, 3))), lambda: None)
            for number in range(24)  # of which a few are read at a time: the last ones wait for a second
        ]
        assert [each.result()[0] for each in found] == [bytes([number]) * 3 for number in range(24)]
    passes.close()


def test_one_that_hangs_is_given_up_though_others_get_on() -> None:
    over = threading.Event()

    def fetch(number: int, begin: int, target: memoryview, only_source: bool) -> Origin:
        over.wait(20 if number == 0 else 0.05)
        return Origin.SOURCE

    passes, request = _relay(fetch), Request(Op.READ, 0, ((0, 1),))
    with ThreadPoolExecutor(1) as threads:
        hanging = threads.submit(passes.read, request, lambda: None)
        while not hanging.done():
            passes.read(Request(Op.READ, 1, ((0, 1),)), lambda: None)
        with pytest.raises(StorageError, match=r"source has sent nothing for [0-9]+ s"):
            hanging.result()
    over.set()
    passes.close()


def test_where_the_system_allows_one_thread_it_reads_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    def fetch(number: int, begin: int, target: memoryview, only_source: bool) -> Origin:
        time.sleep(0.02)
        return Origin.SOURCE

    start, started = world.start, list[str]()

    def start_one(call: Callable[[], object], name: str) -> world.Thread:
        if started:
            raise MissingError("cannot start a thread: the limit of processes is reached")
        started.append(name)
        return start(call, name)

    monkeypatch.setattr(world, "start", start_one)
    passes = _relay(fetch)
    with ThreadPoolExecutor(4) as threads:
        found = [threads.submit(passes.read, Request(Op.READ, 0, ((0, 1),)), lambda: None) for _ in range(4)]
        assert [each.result()[1] for each in found] == [Origin.SOURCE] * 4
    passes.close()
    with pytest.raises(MissingError):
        _relay(fetch).read(Request(Op.READ, 0, ((0, 1),)), lambda: None)
