"""Values that threads compute once, and children that are forked during the computation."""

from __future__ import annotations

import os
import signal
import threading
from concurrent.futures import Future
from dataclasses import dataclass

import pytest

from dlio.cached import cached_property
from dlio.io import threads as threads_module
from dlio.io.threads import Threads, in_threads
from tests.helpers.live import eventually

_started, _go_on = threading.Event(), threading.Event()


@dataclass(frozen=True)
class _Item:
    waits: bool

    @cached_property
    def answer(self) -> object:
        if self.waits:
            _started.set()
            _go_on.wait(60)
        return object()


def test_a_property_is_computed_once() -> None:
    item = _Item(waits=False)
    assert item.answer is item.answer
    assert item.answer is not _Item(waits=False).answer


def test_a_fork_amid_a_property_leaves_no_lock() -> None:
    thread = threading.Thread(target=lambda: _Item(waits=True).answer)
    thread.start()
    assert _started.wait(60)
    child = os.fork()
    if child == 0:
        signal.alarm(30)
        os._exit(0 if _Item(waits=False).answer else 1)
    status = os.waitpid(child, 0)[1]
    _go_on.set()
    thread.join()
    assert status == 0


def test_items_come_back_in_their_order_whichever_thread_is_first() -> None:
    together = threading.Barrier(3)

    def call(number: int) -> tuple[int, str]:
        together.wait(10)
        return number, threading.current_thread().name

    found = in_threads(3, call, range(9), "dlio-test")
    assert [number for number, _ in found] == list(range(9)) and {name for _, name in found} == {"dlio-test"}
    assert in_threads(3, lambda item: threading.current_thread(), ["one"], "dlio-test") == [threading.current_thread()]


def test_the_first_error_of_an_item_ends_all() -> None:
    calls: list[int] = []

    def call(number: int) -> None:
        calls.append(number)
        raise ValueError(f"item {number}")

    with pytest.raises(ValueError, match=r"item [01]"):
        in_threads(2, call, range(100), "dlio-test")
    assert len(calls) <= 2


def test_after_an_error_no_further_item_is_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    futures, calls = list[Future[None]](), list[int]()

    def call(number: int) -> None:
        calls.append(number)
        if number == 0:
            raise ValueError("item 0")
        eventually(lambda: len(futures) == 5 and all(later.cancelled() for later in futures[2:]))

    with Threads(1, "dlio-test") as threads:
        submit = threads.submit
        monkeypatch.setattr(threads, "submit", lambda call: futures.append(submit(call)) or futures[-1])
        with pytest.raises(ValueError, match="item 0"):
            threads.each(call, range(5))
    assert calls in ([0], [0, 1])


def test_what_is_submitted_to_stopped_threads_is_cancelled() -> None:
    with Threads(1, "dlio-test") as threads:
        threads.stop()
        assert threads.submit(lambda: None).cancelled()


def test_a_call_that_hangs_does_not_hold_up_who_leaves_its_context(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads_module, "INTERRUPT_SECONDS", 0.05)
    goes_on = threading.Event()
    with Threads(1, "dlio-test") as threads:
        left_behind = threads.submit(lambda: goes_on.wait(20))
        eventually(left_behind.running)
    assert left_behind.running()
    goes_on.set()
    assert left_behind.result(20)
