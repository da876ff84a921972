"""The threads of a fill: who fetches, who verifies, and what a reader hears of a source or disk that hangs."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise, product
from pathlib import Path
from typing import cast

import pytest

from dlio.dataset.manifest import File
from dlio.errors import StorageError
from dlio.io import files, world
from dlio.io.files import Span
from dlio.stage.engine import fill as filling
from dlio.stage.engine import pending
from dlio.stage.engine.failures import GIVE_UP_SECONDS, Work
from dlio.stage.engine.fetch import Fetching
from dlio.stage.engine.fill import Fill
from dlio.stage.engine.pieces import PieceSize
from dlio.stage.engine.store import Store
from dlio.stage.meeting.folder import MeetingFolder
from dlio.stage.meeting.meeting import Meeting
from dlio.stage.planning import flows
from dlio.stage.protocol.wire import Origin
from dlio.stage.sources import StagingSource
from tests.helpers.live import (
    Anywhere,
    FetchedBy,
    eventually,
    files_of_zeros,
    made_at,
    plan_of,
    store_at,
    zeros,
)
from tests.helpers.staging import MiB
from tests.helpers.worlds import InWorld, in_world, run_in, simulated

__all__ = ["in_world"]


def test_one_thread_looks_for_work_and_another_goes_on_when_it_has_found_some(in_world: InWorld) -> None:
    def check() -> None:
        work, due, all_taken = Work(), [0.1, 0.2, 0.3], world.event()
        began, looks = world.monotonic(), 0

        def serve() -> None:
            nonlocal looks
            with work:
                while due and world.monotonic() < began + due[0]:
                    looks += 1
                    work.wait(0.01)
                if due:
                    due.pop(0)
                    work.wake_another()
                if not due:
                    all_taken.set()
                    work.notify_all()
            assert all_taken.wait(20)  # busy with what was found

        threads = [world.start(serve, f"serve{each}") for each in range(12)]
        for thread in threads:
            thread.join()
        assert looks < 3 * (world.monotonic() - began) / 0.01 + len(threads)

    in_world(check)


class _HangingPlace:
    """A meeting folder in a home directory that hangs, once the other node was looked up."""

    token, is_joined_by_others = bytes(32), True

    def __init__(self) -> None:
        self.looks, self.hangs, self.answers = 0, threading.Event(), threading.Event()

    def find(self, node: int) -> None:
        self.looks += 1
        if self.looks > 1:
            self.hangs.set()
            self.answers.wait(60)


def test_a_meeting_folder_that_hangs_holds_up_no_file_of_this_node(tmp_path: Path) -> None:
    place, content = _HangingPlace(), b"content"
    listed = [File(f"{number}.bin", len(content), files.digest_bytes(content)) for number in range(8)]
    plan = plan_of(listed, 0, 2)
    own = {number for number in range(8) if plan.home(number) == 0}

    class Source:
        name_of = Anywhere.name_of

        def read_range(self, file: File, offset: int, target: memoryview) -> None:
            assert place.hangs.wait(60)
            target[:] = content

    meeting = Meeting(cast(MeetingFolder, place), 0, 2, "0" * 32)
    assert meeting.expects(1)
    meeting._other(1).look_at = 0.0
    assert not meeting.expects(1, looks=False) and place.looks == 1  # which is asked under the lock of all fetching
    fetching = Fetching(cast(StagingSource, Source()), plan, meeting)
    store = Store(made_at(tmp_path), plan, range(8), Anywhere().name_of, Anywhere().access)
    fill = Fill(store, fetching)
    fill.follow(plan.order())
    fill.start()
    try:
        eventually(lambda: all(map(store.is_finished, own)), 30)
        assert place.looks == 2
    finally:
        place.answers.set()
        assert fill.stop()


def test_all_readers_get_pieces_while_a_disk_syncs_whole_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And no file that is left to the threads that verify waits for a round through all that is left."""
    monkeypatch.setattr(pending, "LOOK_SECONDS", 1e6)
    count, synced, together = flows.THREADS + 8, threading.Event(), threading.Barrier(flows.THREADS)

    def fetch(number: int, begin: int, target: memoryview, only_source: bool) -> Origin:
        if number >= count and not begin:
            together.wait(30)
        return zeros(number, begin, target, only_source)

    store = store_at(tmp_path, files_of_zeros(count + flows.THREADS, 2 * MiB))
    finish, whole = store.finish, Counter[int]()

    def held_up(number: int, _: Callable[[], None]) -> None:
        whole[number] += 1
        synced.wait(60)
        finish(number)

    monkeypatch.setattr(store, "finish", held_up)
    fill = Fill(store, FetchedBy(fetch, store.listed))
    fill.follow(range(count))
    fill.start()
    try:
        eventually(lambda: all(map(store.is_whole, range(count))), 15)
        for number in range(count, count + flows.THREADS):
            fill._ask(number, [(0, 9)], is_urgent=True, comes_first=True)
        assert fill.need(count, [(0, 9)]) == Origin.SOURCE
        synced.set()
        eventually(lambda: all(map(store.is_finished, range(count))))
    finally:
        synced.set()
        together.abort()
        assert fill.stop()
    assert set(whole.values()) == {1}


def test_all_threads_verify_files_for_who_waits_for_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, together = store_at(tmp_path, files_of_zeros(flows.THREADS, MiB)), threading.Barrier(flows.THREADS)
    for number, begin in product(range(flows.THREADS), (0, MiB // 2)):
        store.write(number, begin, memoryview(bytes(MiB // 2)))
    finish = store.finish

    def awaited(number: int, _: Callable[[], None]) -> None:
        together.wait(30)
        finish(number)

    monkeypatch.setattr(store, "finish", awaited)
    fill = Fill(store, FetchedBy(zeros, store.listed), is_hurried=True)
    fill.follow(range(flows.THREADS))
    fill.start()
    try:
        eventually(lambda: store.is_complete)
    finally:
        together.abort()
        assert fill.stop()


@pytest.mark.parametrize("reads_again", [False, True])
@pytest.mark.parametrize(("seconds", "pause", "is_given_up"), [(24, 24, False), (90, 90, True), (90, 30, False)])
def test_readers_of_a_file_that_is_verified_for_long_wait_and_show_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: int, pause: int, is_given_up: bool, reads_again: bool
) -> None:
    """It lacks its name only, so that no piece of it comes. A disk that hangs holds up nobody forever."""
    monkeypatch.setattr(filling, "STUCK_SECONDS", 60.0)
    monkeypatch.setattr(pending, "LOOK_SECONDS", 1e6)
    beats, problems = list[float](), list[str]()

    def check() -> None:
        store = store_at(tmp_path, files_of_zeros(1, 2 * MiB))
        for begin in (0, MiB):
            store.write(0, begin, memoryview(bytes(MiB)))
        finish, asked = store.finish, world.event()

        def slow(number: int, advance: Callable[[], None]) -> None:
            asked.set()
            for _ in range(seconds // pause):
                world.sleep(pause)
                advance()
            finish(number, advance)

        def read() -> None:
            try:
                fill.need(0, [], None if reads_again else lambda: beats.append(world.monotonic()))
            except StorageError as error:
                problems.append(error.text)

        monkeypatch.setattr(store, "finish", slow)
        fill = Fill(store, FetchedBy(zeros, store.listed))
        fill.start()
        world.sleep(1)
        reader = world.start(read, "reader")
        if reads_again:
            asked.wait(60)
            try:
                fill.again(0, [(0, 9)], lambda: beats.append(world.monotonic()))
            except StorageError as error:
                problems.append(error.text)
        reader.join()
        fill.stop()

    run_in(simulated(tmp_path), check)
    why = "source is whole, and has been verified for 60 s"
    assert [text.partition(":")[0] for text in problems] == is_given_up * (1 + reads_again) * [why]
    assert all(later - earlier < 4 for earlier, later in pairwise(beats))
    assert len(beats) > min(seconds, 60) / 3


def test_a_source_that_hangs_while_a_reader_waits_stops_no_copies_from_others(tmp_path: Path) -> None:
    class Passed(FetchedBy):
        exchanges = True

        def share(self, number: int, spans: Sequence[Span], *, is_far: bool) -> Sequence[Span]:
            return spans if (number == 1) == is_far else []

    def check() -> None:
        store, answers = store_at(tmp_path, files_of_zeros(2, 4 * MiB)), world.event()

        def fetch(number: int, begin: int, target: memoryview, only_source: bool) -> Origin:
            if number == 0:
                answers.wait()
            return zeros(number, begin, target, only_source)

        fill = Fill(store, Passed(fetch, store.listed))
        fill.follow([0, 1])
        reader = world.start(lambda: fill.need(0, [(0, MiB)]), "reader")
        world.sleep(0.1)
        fill.start()
        world.sleep(GIVE_UP_SECONDS - 1)
        assert store.is_finished(1)
        answers.set()
        reader.join()
        fill.stop()

    run_in(simulated(tmp_path), check)


def test_a_source_hangs_no_longer_than_it_has_been_asked(tmp_path: Path) -> None:
    found = list[str]()

    def fetch(number: int, begin: int, target: memoryview, only_source: bool) -> Origin:
        fill.latest -= 1000 * GIVE_UP_SECONDS
        found.append(fill.hanging)
        return zeros(number, begin, target, only_source)

    listed = files_of_zeros(1, 7)
    fill = Fill(store := store_at(tmp_path, listed), FetchedBy(fetch, listed))
    fill.follow([0])
    fill.start(1)
    eventually(lambda: store.is_complete)
    assert fill.stop() and found == [""]


def test_a_source_hangs_if_no_piece_comes_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(world, "monotonic", lambda: now[0])
    size = PieceSize()
    for _ in range(5):
        now[0] += 1.5
        assert not size.is_hung
        size.note(MiB, 1.0)
    now[0] += 3.0
    assert size.is_hung
