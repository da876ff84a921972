"""Which node is asked next: all alike, and none that is late or busy holds up what another one has."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import pytest

from dlio.dataset.manifest import File
from dlio.io.files import Span
from dlio.stage.copies.blocks import BLOCK_BYTES
from dlio.stage.engine import pending
from dlio.stage.engine.failures import Failures
from dlio.stage.engine.fetch import Fetching
from dlio.stage.engine.pending import Pending
from dlio.stage.engine.pieces import Piece
from dlio.stage.sources import StagingSource
from tests.helpers.live import (
    Anywhere,
    plan_of,
    store_at,
)
from tests.helpers.staging import MiB


@dataclass
class _Homes:
    """The nodes that read the files in turn; `late` files are of nodes that are expected, each may be divided."""

    late: set[int] = field(default_factory=set)
    num_nodes: int = 1
    is_divided_by: int = 0
    looked_at: list[int] = field(default_factory=list)

    def share(self, number: int, spans: list[Span], *, is_far: bool) -> Iterable[Span]:
        size = self.is_divided_by
        return [(begin, begin + size) for begin in range(0, spans[-1][1], size)] if size else spans

    def home(self, number: int, begin: int) -> int:
        return number % self.num_nodes

    def is_divided(self, number: int) -> bool:
        return self.is_divided_by > 0

    def is_expected(self, number: int, begin: int, *, looks: bool = True) -> bool:
        self.looked_at.append(number)
        return number in self.late


def test_what_is_left_of_a_divided_file_is_fetched_before_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else its digest would wait for it until the end, and then read again all that has come since."""
    monkeypatch.setattr(pending, "LOOK_SECONDS", 0.0)

    store = store_at(tmp_path, [File("a.bin", 8 * MiB, "xxh3-128:0")])
    pieces = Pending(
        store, Failures(), cast(Fetching, _Homes(is_divided_by=MiB)), defaultdict(list), 8, is_hurried=True
    )
    pieces.follow([0])
    first, _ = pieces.take() or pytest.fail("there is none")
    second, _ = pieces.take() or pytest.fail("there is none")
    pieces.leave_for_later(0, 0)
    pieces.release(first, is_urgent=False)
    third, _ = pieces.take() or pytest.fail("there is none")
    assert [second.begin, third.begin] == [MiB, 0] and third == first


def test_what_a_late_node_reads_is_fetched_as_soon_as_it_has_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not last: a node that waits in the meantime for what others read gets behind, and has the longest way to go."""
    monkeypatch.setattr(pending, "LOOK_SECONDS", 0.0)
    monkeypatch.setattr(pending, "_MOST_DUE", 2)
    store = store_at(tmp_path, [File(f"{number}.bin", MiB, "xxh3-128:0") for number in range(200)])
    homes = _Homes(late=set(range(100)))
    pieces = Pending(store, Failures(), cast(Fetching, homes), defaultdict(list), 8, is_hurried=True)
    pieces.follow(range(200))

    def taken() -> int:
        homes.looked_at.clear()
        piece, _ = pieces.take() or pytest.fail("there is none")
        return piece.number

    assert [taken(), taken()] == [100, 101]
    assert len(homes.looked_at) < 10  # the caller holds a lock
    homes.late.clear()
    assert max(taken() for _ in range(5)) < 100


def test_what_a_busy_node_has_holds_up_no_other_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else all threads would wait for it again and again, while other nodes have what is lacking, too."""
    monkeypatch.setattr(pending, "LOOK_SECONDS", 0.0)

    store = store_at(tmp_path, [File(f"{number}.bin", MiB, "xxh3-128:0") for number in range(5)])
    pieces = Pending(store, Failures(), cast(Fetching, _Homes()), defaultdict(list), 8, is_hurried=True)
    pieces.follow(range(5))
    order = list[int]()
    for _ in range(6):
        piece, _ = pieces.take() or pytest.fail("there is none")
        order.append(piece.number)
        if piece.number == 0:
            pieces.leave_for_later(0, 0)
            pieces.release(piece, is_urgent=False)
    assert order == [0, 1, 2, 3, 4, 0]


@pytest.mark.parametrize(("is_far", "numbers"), [(True, [0, 1, 2, 1]), (False, [0, 0, 1, 1])])
def test_threads_fetch_different_files_of_other_nodes(is_far: bool, numbers: list[int], tmp_path: Path) -> None:
    """Else those of all nodes gather at one of them, whose link all others wait for."""
    listed = [File(f"{number}.bin", 8 * MiB, "xxh3-128:0") for number in range(3)]
    store = store_at(tmp_path, listed)
    fetching = Fetching(cast(StagingSource, Anywhere()), plan_of(listed))
    wanted = Pending(store, Failures(), fetching, defaultdict(list), 4, is_far=is_far, is_hurried=True)
    wanted.follow([0, 1, 2])
    taken = [wanted.take() for _ in range(3)]
    if taken[1]:
        wanted.release(taken[1][0], is_urgent=False)
    taken.append(wanted.take())
    assert [piece[0].number for piece in taken if piece] == numbers
    store.close()


@pytest.fixture
def of_two_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[_Homes, Pending]]:
    """Four threads that fetch files of two pieces: first of node 1, which is late, and then of node 0."""
    monkeypatch.setattr(pending, "LOOK_SECONDS", 0.0)
    homes = _Homes(late={*range(1, 100, 2)}, num_nodes=2)
    store = store_at(tmp_path, [File(f"{number}.bin", 8 * MiB, "xxh3-128:0") for number in range(100)])
    threads = Pending(store, Failures(), cast(Fetching, homes), defaultdict(list), 4, is_far=True, is_hurried=True)
    threads.follow([*range(1, 100, 2), *range(0, 100, 2)])
    yield homes, threads
    store.close()


def _taken(threads: Pending) -> int:
    piece, _ = threads.take() or pytest.fail("there is none")
    return piece.number


def test_a_node_that_comes_is_asked_as_much_as_those_before_it(of_two_nodes: tuple[_Homes, Pending]) -> None:
    """Else all threads stay with the files that they have begun, and wait for one link while the others idle."""
    homes, threads = of_two_nodes
    assert [_taken(threads) for _ in range(4)] == [0, 2, 4, 6]
    homes.late.clear()
    asked = list[int]()
    for number in (0, 2, 4):
        threads.release(Piece(number, 0, 4 * MiB), is_urgent=False)
        asked.append(_taken(threads))
    assert asked == [1, 3, 0]


def test_no_more_files_are_begun_than_threads_need_to_ask_another_node(of_two_nodes: tuple[_Homes, Pending]) -> None:
    """All that were left may be of the same busy node, and the caller holds a lock."""
    homes, threads = of_two_nodes
    homes.num_nodes = 1
    assert [_taken(threads) for _ in range(4)] == [0, 2, 4, 6]
    homes.late.clear()
    homes.looked_at.clear()
    threads.release(Piece(0, 0, 4 * MiB), is_urgent=False)
    assert _taken(threads) == 0
    assert len(homes.looked_at) < 10


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

    store, fetching = store_at(tmp_path, listed), Looked(cast(StagingSource, Anywhere()), plan_of(listed))
    monkeypatch.setattr(store, "missing", missing)
    wanted = Pending(store, Failures(), fetching, defaultdict(list), 4, is_far=True, is_hurried=True)
    wanted.follow([0, 1])
    taken = [wanted.take() for _ in range(4)]
    assert [(piece[0].number, piece[0].begin) for piece in taken if piece] == [
        (0, 0), (1, 0), (0, 2 * BLOCK_BYTES), (0, 4 * BLOCK_BYTES)
    ]  # fmt: skip
    assert len(looks) < 20
    store.close()


class _InPieces(_Homes):
    """The nodes that read the pieces of a divided file in turn; those of `late_nodes` are expected."""

    late_nodes = frozenset[int]()

    def home(self, number: int, begin: int) -> int:
        return begin // MiB % self.num_nodes

    def is_expected(self, number: int, begin: int, *, looks: bool = True) -> bool:
        return self.home(number, begin) in self.late_nodes


def _fetched_in_pieces(folder: Path, homes: _InPieces, threads: int) -> Pending:
    store = store_at(folder, [File("a.bin", 30 * MiB, "xxh3-128:0")])
    pieces = Pending(store, Failures(), cast(Fetching, homes), defaultdict(list), threads, is_far=True, is_hurried=True)
    pieces.follow([0])
    return pieces


def _piece(threads: Pending) -> int:
    piece, _ = threads.take() or pytest.fail("there is none")
    return piece.begin // MiB


def test_pieces_of_a_divided_file_come_from_nodes_that_no_thread_asks(tmp_path: Path) -> None:
    """Else all threads of all nodes wait for one link, while the others idle."""
    threads = _fetched_in_pieces(tmp_path, _InPieces(num_nodes=3, is_divided_by=MiB), 3)
    taken = [_piece(threads) for _ in range(3)]
    for done in (1, 2, 0):
        threads.release(Piece(0, done * MiB, (done + 1) * MiB), is_urgent=False)
        taken.append(_piece(threads))
    assert taken == [0, 1, 2, 4, 5, 3]


def test_a_late_node_holds_up_no_piece_of_another_one(tmp_path: Path) -> None:
    """Those that have come are asked, though what this one will read is left."""
    homes = _InPieces(num_nodes=3, is_divided_by=MiB)
    homes.late_nodes = frozenset([1])
    threads = _fetched_in_pieces(tmp_path, homes, 4)
    assert [_piece(threads) for _ in range(4)] == [0, 2, 3, 5]


def test_a_busy_node_holds_up_no_piece_of_another_one(tmp_path: Path) -> None:
    """Those that were found for other threads are fetched, and what the busy node has is left."""
    threads = _fetched_in_pieces(tmp_path, _InPieces(num_nodes=2, is_divided_by=MiB), 4)
    assert [_piece(threads) for _ in range(3)] == [0, 1, 2]
    threads.leave_for_later(0, 0)
    threads.release(Piece(0, 0, MiB), is_urgent=False)
    assert _piece(threads) == 3


def test_the_pieces_of_a_huge_file_are_not_gathered_in_search_of_another_node(tmp_path: Path) -> None:
    """Threads that ask all nodes alike would hold a lock for minutes."""
    shared, huge = list[Span](), File("huge.sqsh", 1 << 40, "xxh3-128:0")

    class Divided(_Homes):
        def share(self, number: int, spans: list[Span], *, is_far: bool) -> Iterator[Span]:
            for begin in range(0, huge.num_bytes, 4 * MiB):
                shared.append((begin, begin + 4 * MiB))
                assert len(shared) < 30
                yield shared[-1]

        def is_divided(self, number: int) -> bool:
            return True

    store = store_at(tmp_path, [huge])
    pieces = Pending(store, Failures(), cast(Fetching, Divided()), defaultdict(list), 8, is_far=True, is_hurried=True)
    pieces.follow([0])
    assert pieces.take() and pieces.take()
