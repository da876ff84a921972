"""The order of a fill: what a loader waits for comes first, and nothing else waits forever."""

from __future__ import annotations

import math
import threading
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import pytest

from dlio.dataset.manifest import File
from dlio.io import files, world
from dlio.io.files import Span
from dlio.stage.copies.blocks import BLOCK_BYTES
from dlio.stage.copies.live_folder import FILES
from dlio.stage.engine import fill as filling
from dlio.stage.engine.failures import Failures
from dlio.stage.engine.fetch import Fetching
from dlio.stage.engine.fill import Fill
from dlio.stage.engine.pending import Pending
from dlio.stage.engine.pieces import FetchBudget, Piece
from dlio.stage.protocol.wire import Origin
from dlio.stage.sources import StagingSource
from tests.helpers.live import (
    Anywhere,
    FetchedBy,
    eventually,
    files_of_zeros,
    live_at,
    plan_of,
    store_at,
    zeros,
)
from tests.helpers.staging import MiB

_URGENT, _AHEAD = 0, 1
_BEFORE = 8  # pieces that loaders get while what is asked ahead is not overdue


def test_files_left_for_later_are_not_begun_until_then(tmp_path: Path) -> None:
    content, later = b"content", {1}

    class Late(FetchedBy):
        def is_expected(self, number: int, begin: int, *, looks: bool = True) -> bool:
            return number in later

    listed = [File(name, len(content), files.digest_bytes(content)) for name in ("now.bin", "later.bin")]
    store = store_at(tmp_path, listed)
    begun = live_at(tmp_path).path / FILES / "later.bin"

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


def test_a_piece_that_is_under_way_is_not_fetched_when_its_owner_changes(tmp_path: Path) -> None:
    """It was another node's, and is this one's once the rooms of all are known."""
    listed, under_way = [File("a.bin", MiB, "xxh3-128:0")], defaultdict[int, list[Piece]](list)
    store, fetching = store_at(tmp_path, listed), Fetching(cast(StagingSource, Anywhere()), plan_of(listed))
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
    fill = Fill(store_at(tmp_path, listed), FetchedBy(fetch, listed))
    fill._ask(_URGENT, [(0, MiB)], is_urgent=True, comes_first=True)
    node = threading.Thread(target=ask_ahead)
    node.start()
    fill.start(1)
    eventually(lambda: bool(fill._pending[0]._asked_ahead))
    asks.set()
    node.join(60)
    assert fill.stop() and not node.is_alive()
    assert _BEFORE <= order.index(_AHEAD) < size // MiB - 1


def test_nothing_is_copied_from_others_while_readers_wait_and_the_source_has_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Passed(FetchedBy):
        exchanges = True

        def share(self, number: int, spans: Sequence[Span], *, is_far: bool) -> Sequence[Span]:
            return spans if number == is_far else []

    store = store_at(tmp_path, files_of_zeros(2, 2 * MiB))
    fill = Fill(store, Passed(zeros, store.listed))
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
    store = store_at(tmp_path, listed := [File("a.bin", 8 * MiB, "xxh3-128:0")])
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
    store = store_at(tmp_path, listed := [File("a.bin", 8 * MiB, "xxh3-128:0")])
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
