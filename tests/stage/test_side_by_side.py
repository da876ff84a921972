"""Small files are read by many threads if their storage is slow, and by one at a time if it is not."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from dlio.errors import StorageError
from dlio.io import threads as io_threads
from dlio.io.threads import SideBySide


@pytest.fixture
def files() -> Iterator[SideBySide]:
    together = SideBySide()
    yield together
    together.close()


def test_quick_files_are_read_by_one_thread_at_a_time(files: SideBySide, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(io_threads, "_SLOW_SECONDS", 60.0)
    monkeypatch.setattr(io_threads, "_TURN_SECONDS", 60.0)
    began, other_began = threading.Event(), threading.Event()

    def first(item: int) -> None:
        began.set()
        assert not other_began.wait(0.1)

    with ThreadPoolExecutor(1) as threads:
        reading = threads.submit(files.each, first, [0, 1])
        began.wait()
        files.each(lambda item: other_began.set(), [0])
        reading.result()
    assert other_began.is_set()


def test_a_read_that_hangs_holds_up_its_own_group_only(files: SideBySide, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(io_threads, "_TURN_SECONDS", 0.01)
    began, others_are_read = threading.Event(), threading.Event()

    def hangs(_: int) -> None:
        began.set()
        assert others_are_read.wait(60)

    with ThreadPoolExecutor(1) as threads:
        hanging = threads.submit(files.each, hangs, [0])
        began.wait()
        files.each(lambda item: None, range(10))
        others_are_read.set()
        hanging.result()


def test_one_slow_read_among_quick_ones_starts_no_threads(files: SideBySide, monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([0.0, 1.0, 1.0, 1.0, 1.0, 2.0, 2.0, 3.0, 3.0, 3.0])  # before and after each of five reads
    clock = SimpleNamespace(perf_counter=lambda: next(times), monotonic=time.monotonic)  # of this module only
    monkeypatch.setattr(io_threads, "time", clock)
    readers = set[int]()
    files.each(lambda item: readers.add(threading.get_ident()), range(5))
    assert readers == {threading.get_ident()}


def test_a_read_that_fails_is_raised_when_no_other_read_still_writes(
    files: SideBySide, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(io_threads, "_SLOW_SECONDS", -1.0)
    slow_began, target = threading.Event(), bytearray(6)

    def read(item: int) -> None:
        if item == 4:
            assert slow_began.wait(60)
            raise OSError("item 4")
        if item == 5:
            slow_began.set()
            time.sleep(0.1)
        target[item] = 1

    with pytest.raises(OSError, match="item 4"):
        files.each(read, range(6))
    assert target == bytes([1, 1, 1, 1, 0, 1])


def test_a_close_leaves_a_read_that_hangs_behind_and_ends_the_others(
    files: SideBySide, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(io_threads, "_SLOW_SECONDS", -1.0)
    monkeypatch.setattr(io_threads, "_READERS", 1)
    monkeypatch.setattr(io_threads, "INTERRUPT_SECONDS", 0.01)
    began, go_on = threading.Event(), threading.Event()

    def hangs(item: int) -> None:
        if item >= 4:
            began.set()
            assert go_on.wait(20)

    with ThreadPoolExecutor(1) as threads:
        hanging = threads.submit(files.each, hangs, range(400))
        assert began.wait(60)
        files.close()
        files.each(lambda item: None, range(10))  # by new threads
        go_on.set()
        with pytest.raises(StorageError, match="closed while they were read"):
            hanging.result(60)
