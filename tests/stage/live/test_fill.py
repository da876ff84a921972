"""The order of a fill: what a loader waits for comes first, and nothing else waits forever."""

from __future__ import annotations

import errno
import math
import os
import random
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise, product
from pathlib import Path
from typing import cast

import pytest

from dlio.dataset.manifest import File
from dlio.errors import StorageError
from dlio.io import files, world
from dlio.io.files import Span
from dlio.stage.copies.blocks import BLOCK_BYTES
from dlio.stage.copies.folder import StagedFolder
from dlio.stage.copies.live_folder import FILES, LiveFolder
from dlio.stage.engine import fill as filling
from dlio.stage.engine import pending
from dlio.stage.engine.failures import GIVE_UP_SECONDS, Failures, Work
from dlio.stage.engine.fetch import Fetching
from dlio.stage.engine.fill import Fill
from dlio.stage.engine.pending import Pending
from dlio.stage.engine.pieces import FetchBudget, Piece, PieceSize
from dlio.stage.engine.store import Store
from dlio.stage.meeting.folder import MeetingFolder
from dlio.stage.meeting.meeting import Meeting
from dlio.stage.planning import flows
from dlio.stage.protocol.wire import Origin
from dlio.stage.sources import StagingSource
from tests.helpers.live import Anywhere, FetchedBy, eventually, plan_of, store_of
from tests.helpers.staging import MiB
from tests.helpers.worlds import InWorld, in_world, run_in, simulated

__all__ = ["in_world"]

_URGENT, _AHEAD = 0, 1
_BEFORE = 8  # pieces that loaders get while what is asked ahead is not overdue


def _live(folder: Path) -> LiveFolder:
    return LiveFolder(StagedFolder(folder, "0" * 32))


def _made(folder: Path) -> LiveFolder:
    live = _live(folder)
    live.staged.path.mkdir(parents=True)
    live.make()
    return live


def _store(folder: Path, listed: list[File], report: Callable[[int], None] | None = None) -> Store:
    return store_of(_made(folder), listed, **({"report": report} if report else {}))


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


def test_files_left_for_later_are_not_begun_until_then(tmp_path: Path) -> None:
    content, later = b"content", {1}

    class Late(FetchedBy):
        def is_expected(self, number: int, begin: int, *, looks: bool = True) -> bool:
            return number in later

    listed = [File(name, len(content), files.digest_bytes(content)) for name in ("now.bin", "later.bin")]
    store = _store(tmp_path, listed)
    begun = _live(tmp_path).path / FILES / "later.bin"

    def fetch(number: int, begin: int, target: memoryview, only_source: bool) -> Origin:
        target[:] = content
        return Origin.SOURCE

    fill = Fill(store, Late(fetch, listed))
    fill.follow([0, 1])
    fill.start(2)
    eventually(lambda: store.is_finished(0))
    eventually(lambda: fill._pending[0]._next_round_at > 0)  # a whole round is over
    assert not begun.exists()
    later.clear()
    eventually(lambda: store.is_complete)
    assert fill.stop()


def test_a_damaged_file_is_fetched_again_before_the_rest(tmp_path: Path) -> None:
    """It shows which node sends wrong bytes, before that has sent all."""
    content = random.Random(3).randbytes(2 * MiB)
    store = _store(tmp_path, [File(f"{each}.bin", len(content), files.digest_bytes(content)) for each in range(3)])
    fetched = list[int]()

    def fetch(number: int, begin: int, target: memoryview, only_source: bool) -> Origin:
        fetched.append(number)
        target[:] = content[begin : begin + len(target)] if len(fetched) > 1 else bytes(len(target))
        return Origin.SOURCE

    fill = Fill(store, FetchedBy(fetch, store.listed))
    fill.follow(range(3))
    fill.start(1)
    eventually(lambda: store.is_complete)
    assert fill.stop()
    assert fetched == sorted(fetched)


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
    store = Store(_made(tmp_path), plan, range(8), Anywhere().name_of, Anywhere().access)
    fill = Fill(store, fetching)
    fill.follow(plan.order())
    fill.start()
    try:
        eventually(lambda: all(map(store.is_finished, own)), 30)
        assert place.looks == 2
    finally:
        place.answers.set()
        assert fill.stop()


def test_what_is_left_of_a_divided_file_is_fetched_before_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else its digest would wait for it until the end, and then read again all that has come since."""
    monkeypatch.setattr(pending, "LOOK_SECONDS", 0.0)

    class Divided:
        def share(self, number: int, spans: list[Span], *, is_far: bool) -> list[Span]:
            return [(begin, begin + MiB) for begin in range(0, 8 * MiB, MiB)]

        def is_divided(self, number: int) -> bool:
            return True

        def is_expected(self, number: int, begin: int, *, looks: bool = True) -> bool:
            return False

    store = _store(tmp_path, [File("a.bin", 8 * MiB, "xxh3-128:0")])
    pieces = Pending(store, Failures(), cast(Fetching, Divided()), defaultdict(list), 8, is_hurried=True)
    pieces.follow([0])
    first, _ = pieces.take() or pytest.fail("there is none")
    second, _ = pieces.take() or pytest.fail("there is none")
    pieces.leave_for_later(0)
    pieces.release(first, is_urgent=False)
    third, _ = pieces.take() or pytest.fail("there is none")
    assert [second.begin, third.begin] == [MiB, 0] and third == first


def test_what_a_late_node_reads_is_fetched_as_soon_as_it_has_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not last: a node that waits meanwhile for what the others read gets behind, and has the longest way to go."""
    monkeypatch.setattr(pending, "LOOK_SECONDS", 0.0)
    monkeypatch.setattr(pending, "_MOST_LOOKED_AT", 2)
    late, looked_at = set(range(100)), list[int]()

    class Late:
        def share(self, number: int, spans: list[Span], *, is_far: bool) -> list[Span]:
            return spans

        def is_divided(self, number: int) -> bool:
            return False

        def is_expected(self, number: int, begin: int, *, looks: bool = True) -> bool:
            looked_at.append(number)
            return number in late

    store = _store(tmp_path, [File(f"{number}.bin", MiB, "xxh3-128:0") for number in range(200)])
    pieces = Pending(store, Failures(), cast(Fetching, Late()), defaultdict(list), 8, is_hurried=True)
    pieces.follow(range(200))

    def taken() -> int:
        looked_at.clear()
        piece, _ = pieces.take() or pytest.fail("there is none")
        return piece.number

    assert [taken(), taken()] == [100, 101]
    assert len(looked_at) < 10  # the caller holds a lock
    late.clear()
    assert max(taken() for _ in range(5)) < 100


def test_a_piece_that_is_under_way_is_not_fetched_when_its_owner_changes(tmp_path: Path) -> None:
    """It was another node's, and is this one's once the rooms of all are known."""
    listed, under_way = [File("a.bin", MiB, "xxh3-128:0")], defaultdict[int, list[Piece]](list)
    store, fetching = _store(tmp_path, listed), Fetching(cast(StagingSource, Anywhere()), plan_of(listed))
    far, near = (Pending(store, Failures(), fetching, under_way, 8, is_hurried=True) for _ in range(2))
    for each in (far, near):
        each.follow([0])
    assert far.take() and near.take() is None
    assert far.has_more and not near.has_more


def test_what_another_node_asks_ahead_is_not_held_up_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One thread fetches, and a loader always waits: a request ahead of use is served only once it is overdue."""
    monkeypatch.setattr(filling, "_OVERDUE_SECONDS", math.inf)
    order, size = list[int](), 64 * MiB
    asks, given = threading.Event(), threading.Event()

    def fetch(number: int, begin: int, target: memoryview, only_source: bool) -> Origin:
        order.append(number)
        if number == _URGENT and begin < size - MiB:  # the loader asks for the next before it has got this
            fill._ask(_URGENT, [(begin + MiB, begin + 2 * MiB)], is_urgent=True, comes_first=True)
            assert asks.wait(60)
            if len(order) == _BEFORE:
                monkeypatch.setattr(filling, "_OVERDUE_SECONDS", -1.0)
            if len(order) > _BEFORE:
                given.wait(0.2)
        return Origin.SOURCE

    def ask_ahead() -> None:
        fill.need(_AHEAD, [(0, MiB)], is_urgent=False)
        given.set()

    listed = [File(name, size, "xxh3-128:0") for name in ("urgent.bin", "ahead.bin")]
    fill = Fill(_store(tmp_path, listed), FetchedBy(fetch, listed))
    fill._ask(_URGENT, [(0, MiB)], is_urgent=True, comes_first=True)
    node = threading.Thread(target=ask_ahead)
    node.start()
    fill.start(1)
    eventually(lambda: bool(fill._pending[0]._asked_ahead))
    asks.set()
    node.join(60)
    assert fill.stop() and not node.is_alive()
    assert _BEFORE <= order.index(_AHEAD) < size // MiB - 1


def test_what_failed_its_checksum_is_fetched_again_and_from_the_source(tmp_path: Path) -> None:
    asked: list[tuple[int, bool]] = []

    def fetch(number: int, begin: int, target: memoryview, only_source: bool) -> Origin:
        asked.append((begin, only_source))
        return Origin.SOURCE if only_source else Origin.PEER

    listed = [File("a.bin", 3 * MiB, "xxh3-128:0")]
    fill = Fill(_store(tmp_path, listed), FetchedBy(fetch, listed))
    fill.start(1)
    try:
        assert fill.need(0, [(0, 9)]) == Origin.PEER
        assert fill.again(0, [(0, 9)]) == Origin.SOURCE
    finally:
        fill.stop()
    assert asked == [(0, False), (0, True)]


@pytest.mark.parametrize("content", [b"content", random.Random(0).randbytes(MiB + 7)], ids=["small", "large"])
def test_a_damaged_file_is_fetched_again_from_the_source(tmp_path: Path, content: bytes) -> None:
    def fetch(number: int, begin: int, target: memoryview, only_source: bool) -> Origin:
        target[:] = content[begin : begin + len(target)] if only_source else bytes(len(target))
        return Origin.SOURCE if only_source else Origin.PEER

    store = _store(tmp_path, [File("a.bin", len(content), files.digest_bytes(content))])
    fill = Fill(store, FetchedBy(fetch, store.listed))
    fill.start(1)
    try:
        assert fill.need(0, []) == Origin.SOURCE
    finally:
        fill.stop()
    assert (_live(tmp_path).staged.path / "a.bin").read_bytes() == content


@pytest.mark.parametrize("size", [9, 99_999, 2 * MiB], ids=["small", "at once", "in blocks"])
def test_a_source_that_answers_after_the_end_changes_no_file(tmp_path: Path, size: int) -> None:
    begun, answers = threading.Event(), threading.Event()

    def fetch(number: int, begin: int, target: memoryview, only_source: bool) -> Origin:
        begun.set()
        answers.wait(60)
        return Origin.SOURCE

    store = _store(tmp_path, [File("a.bin", size, files.digest_bytes(bytes(size)))])
    fill = Fill(store, FetchedBy(fetch, store.listed))
    fill.follow([0])
    fill.start(1)
    assert begun.wait(60) and not fill.stop()
    answers.set()
    eventually(fill.stop)
    assert not [path for path in tmp_path.rglob("a.bin") if path.is_file()]


def test_a_damaged_file_is_fetched_again_though_the_disk_refuses_at_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The blocks cannot be marked as missing once; the only thread continues all the same."""
    content, pwrite, refused = random.Random(0).randbytes(3 * MiB), os.pwrite, list[int]()

    def refuses_once(descriptor: int, data: memoryview, offset: int) -> int:
        if not (any(data) or refused):
            refused.append(descriptor)
            raise OSError(errno.EIO, "Input/output error")
        return pwrite(descriptor, data, offset)

    def fetch(number: int, begin: int, target: memoryview, only_source: bool) -> Origin:
        target[:] = content[begin : begin + len(target)] if only_source else random.randbytes(len(target))
        return Origin.SOURCE if only_source else Origin.PEER

    store = _store(tmp_path, [File("a.bin", len(content), files.digest_bytes(content))])
    monkeypatch.setattr(os, "pwrite", refuses_once)
    fill = Fill(store, FetchedBy(fetch, store.listed))
    fill.start(1)
    try:
        fill.need(0, [])
    finally:
        fill.stop()
    assert refused and (_live(tmp_path).staged.path / "a.bin").read_bytes() == content


def test_nothing_is_written_into_a_file_that_gets_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader reports bad bytes at that moment, and the source has others by now: they would never be verified."""
    content, replace, written = random.Random(0).randbytes(3 * MiB), os.replace, threading.Event()
    names, may_name = threading.Event(), threading.Event()

    def fetch(number: int, begin: int, target: memoryview, only_source: bool) -> Origin:
        target[:] = bytes(len(target)) if only_source else content[begin : begin + len(target)]
        return Origin.SOURCE

    def held_up(source: Path, final: Path, **folders: int | None) -> None:
        if Path(final) == _live(tmp_path).staged.path / "a.bin":
            names.set()
            may_name.wait(60)
        replace(source, final, **folders)

    def report(num_bytes: int) -> None:
        if names.is_set():
            written.set()

    store = _store(tmp_path, [File("a.bin", len(content), files.digest_bytes(content))], report)
    monkeypatch.setattr(os, "replace", held_up)
    fill = Fill(store, FetchedBy(fetch, store.listed))
    fill.follow([0])
    fill.start(2)
    assert names.wait(60)
    reader = threading.Thread(target=lambda: fill.again(0, [(0, 9)]))
    reader.start()
    written.wait(0.5)
    may_name.set()
    reader.join(60)
    assert fill.stop() and (_live(tmp_path).staged.path / "a.bin").read_bytes() == content


def _zeros(number: int, begin: int, target: memoryview, only_source: bool) -> Origin:
    target[:] = bytes(len(target))
    return Origin.SOURCE


def _of_zeros(count: int, size: int) -> list[File]:
    return [File(f"{each}.bin", size, files.digest_bytes(bytes(size))) for each in range(count)]


def test_all_readers_get_pieces_while_a_disk_syncs_whole_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And no file that is left to the threads that verify waits for a round through all that is left."""
    monkeypatch.setattr(pending, "LOOK_SECONDS", 1e6)
    count, synced, together = flows.THREADS + 8, threading.Event(), threading.Barrier(flows.THREADS)

    def fetch(number: int, begin: int, target: memoryview, only_source: bool) -> Origin:
        if number >= count and not begin:
            together.wait(30)
        return _zeros(number, begin, target, only_source)

    store = _store(tmp_path, _of_zeros(count + flows.THREADS, 2 * MiB))
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
    store, together = _store(tmp_path, _of_zeros(flows.THREADS, MiB)), threading.Barrier(flows.THREADS)
    for number, begin in product(range(flows.THREADS), (0, MiB // 2)):
        store.write(number, begin, memoryview(bytes(MiB // 2)))
    finish = store.finish

    def awaited(number: int, _: Callable[[], None]) -> None:
        together.wait(30)
        finish(number)

    monkeypatch.setattr(store, "finish", awaited)
    fill = Fill(store, FetchedBy(_zeros, store.listed), is_hurried=True)
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
        store = _store(tmp_path, _of_zeros(1, 2 * MiB))
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
        fill = Fill(store, FetchedBy(_zeros, store.listed))
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


def test_nothing_is_copied_from_others_while_readers_wait_and_the_source_has_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Passed(FetchedBy):
        exchanges = True

        def share(self, number: int, spans: Sequence[Span], *, is_far: bool) -> Sequence[Span]:
            return spans if number == is_far else []

    store = _store(tmp_path, _of_zeros(2, 2 * MiB))
    fill = Fill(store, Passed(_zeros, store.listed))
    fill.follow([1, 0])
    for each in fill._pending:
        each._budget._urgent_at = each._budget._burst_began = math.inf  # a reader waits at all times
    monkeypatch.setattr(fill._changed, "wait", lambda seconds: setattr(fill, "_stopped", True))  # nothing may be taken

    def taken() -> tuple[Pending, Piece, bool] | None:
        found, fill._stopped = fill._take(), False
        assert not isinstance(found, int)
        return found

    while not store.is_finished(0):
        pieces, piece, _ = taken() or pytest.fail("there is none")
        assert piece.number == 0 and taken() is None
        store.write(0, piece.begin, memoryview(bytes(piece.end - piece.begin)))
        pieces.release(piece, is_urgent=False)
        fill._finish(0)
    assert (found := taken()) and found[1].number == 1
    store.close()


def test_a_source_that_hangs_while_a_reader_waits_stops_no_copies_from_others(tmp_path: Path) -> None:
    class Passed(FetchedBy):
        exchanges = True

        def share(self, number: int, spans: Sequence[Span], *, is_far: bool) -> Sequence[Span]:
            return spans if (number == 1) == is_far else []

    def check() -> None:
        store, answers = _store(tmp_path, _of_zeros(2, 4 * MiB)), world.event()

        def fetch(number: int, begin: int, target: memoryview, only_source: bool) -> Origin:
            if number == 0:
                answers.wait()
            return _zeros(number, begin, target, only_source)

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
        return _zeros(number, begin, target, only_source)

    listed = _of_zeros(1, 7)
    fill = Fill(store := _store(tmp_path, listed), FetchedBy(fetch, listed))
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


def test_copies_of_what_others_read_wait_longest_while_readers_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """They cost the processors and the network, and none of them makes the source idle less."""
    budget, now = FetchBudget(), 100.0
    monkeypatch.setattr(world, "monotonic", lambda: now)
    for _ in range(20):
        now += 0.25
        budget.note_urgent()
    (most, bytes_each), (few, fewer_each) = (budget.now(1e8, may_wait=each) for each in (False, True))
    assert few * fewer_each < most * bytes_each
    now += 1.0
    assert budget.now(1e8, may_wait=True) == budget.now(1e8)


@pytest.mark.parametrize(
    ("seconds", "brought", "size"), [(0.02, 1, 16), (0.02, 33, 256), (0.02, 900, 4096), (0.001, 900, 16)]
)
def test_a_reader_of_a_far_source_gets_what_is_around_its_record(
    seconds: float, brought: int, size: int, tmp_path: Path
) -> None:
    """More when more was brought, and no piece twice; of a near source just the blocks of the record."""
    store = _store(tmp_path, listed := [File("a.bin", 8 * MiB, "xxh3-128:0")])
    fetching = Fetching(cast(StagingSource, Anywhere()), plan_of(listed))
    wanted = Pending(store, Failures(), fetching, defaultdict(list), 8, is_hurried=False)
    for num_bytes in (BLOCK_BYTES, *[MiB] * brought):
        wanted.pace.note(num_bytes, seconds)
    size <<= 10
    begin = 3 * MiB + 5 * BLOCK_BYTES
    first = begin if size == BLOCK_BYTES else begin - begin % size
    for number in range(2):
        wanted.ask(0, [(begin, begin + BLOCK_BYTES)], is_urgent=True, comes_first=True)
        assert wanted.take() == ((Piece(0, first, first + size), True) if number == 0 else None)
    begin = 8 * MiB - BLOCK_BYTES
    wanted.ask(0, [(begin, 8 * MiB)], is_urgent=True, comes_first=True)
    assert wanted.take() == (Piece(0, 8 * MiB - size, 8 * MiB), True)
    store.close()


def test_what_comes_slowly_or_is_under_way_is_not_fetched_with_a_record(tmp_path: Path) -> None:
    store = _store(tmp_path, listed := [File("a.bin", 8 * MiB, "xxh3-128:0")])
    fetching = Fetching(cast(StagingSource, Anywhere()), plan_of(listed))
    wanted = Pending(store, Failures(), fetching, defaultdict(list), 8, is_hurried=False)
    wanted.follow([0])
    taken = wanted.take()
    assert taken and taken[0].begin == 0
    for num_bytes, seconds in [(BLOCK_BYTES, 0.02), *[(4 * MiB, 0.1)] * 99, *[(num * MiB, 0.1) for num in (2, 1)]]:
        wanted.pace.note(num_bytes, seconds)
    begin = taken[0].end + BLOCK_BYTES
    for size in (512 << 10, MiB):
        assert wanted.pace.around(Piece(0, 5 * MiB, 5 * MiB + 1)) == (5 * MiB, 5 * MiB + size)
        wanted.pace.note(512 << 10, 0.03)
    wanted.ask(0, [(begin, begin + BLOCK_BYTES)], is_urgent=True, comes_first=True)
    assert wanted.take() == (Piece(0, taken[0].end, -(-begin // MiB) * MiB), True)
    store.close()


@pytest.mark.parametrize(("is_far", "numbers"), [(True, [0, 1, 2, 1]), (False, [0, 0, 1, 1])])
def test_threads_fetch_different_files_of_other_nodes(is_far: bool, numbers: list[int], tmp_path: Path) -> None:
    """Else those of all nodes gather at one of them, whose link all others wait for."""
    listed = [File(f"{number}.bin", 8 * MiB, "xxh3-128:0") for number in range(3)]
    store = _store(tmp_path, listed)
    fetching = Fetching(cast(StagingSource, Anywhere()), plan_of(listed))
    wanted = Pending(store, Failures(), fetching, defaultdict(list), 4, is_far=is_far, is_hurried=True)
    wanted.follow([0, 1, 2])
    taken = [wanted.take() for _ in range(3)]
    if taken[1]:
        wanted.release(taken[1][0], is_urgent=False)
    taken.append(wanted.take())
    assert [piece[0].number for piece in taken if piece] == numbers
    store.close()


def test_a_thread_looks_once_at_a_file_in_fragments_that_another_one_fetches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It holds a lock; the others would take this node for lost."""
    listed, looks = [File(f"{number}.bin", 512 * BLOCK_BYTES, "xxh3-128:0") for number in range(2)], list[int]()
    fragments = [(begin, begin + BLOCK_BYTES) for begin in range(0, 512 * BLOCK_BYTES, 2 * BLOCK_BYTES)]

    class Looked(Fetching):
        def is_divided(self, number: int) -> bool:
            looks.append(number)
            return False

    def missing(number: int, spans: list[Span], *, begins: bool) -> list[Span]:
        return fragments if spans == [(0, 512 * BLOCK_BYTES)] else spans

    store, fetching = _store(tmp_path, listed), Looked(cast(StagingSource, Anywhere()), plan_of(listed))
    monkeypatch.setattr(store, "missing", missing)
    wanted = Pending(store, Failures(), fetching, defaultdict(list), 4, is_far=True, is_hurried=True)
    wanted.follow([0, 1])
    taken = [wanted.take() for _ in range(4)]
    assert [(piece[0].number, piece[0].begin) for piece in taken if piece] == [
        (0, 0), (1, 0), (0, 2 * BLOCK_BYTES), (0, 4 * BLOCK_BYTES)
    ]  # fmt: skip
    assert len(looks) < 20
    store.close()


def test_the_pieces_of_a_huge_file_are_not_gathered_in_search_of_another_file(tmp_path: Path) -> None:
    """Threads that take files of different nodes would hold a lock for minutes."""
    shared, huge = list[Span](), File("huge.sqsh", 1 << 40, "xxh3-128:0")

    class Divided:
        def share(self, number: int, spans: list[Span], *, is_far: bool) -> Iterator[Span]:
            for begin in range(0, huge.num_bytes, 4 * MiB):
                shared.append((begin, begin + 4 * MiB))
                assert len(shared) < 10
                yield shared[-1]

        def is_divided(self, number: int) -> bool:
            return True

        def is_expected(self, number: int, begin: int, *, looks: bool = True) -> bool:
            return False

    store = _store(tmp_path, [huge])
    pieces = Pending(store, Failures(), cast(Fetching, Divided()), defaultdict(list), 8, is_far=True, is_hurried=True)
    pieces.follow([0])
    assert pieces.take() and pieces.take()
