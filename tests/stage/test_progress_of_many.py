"""How long rank 0 waits for the progress of many processes, by a clock that moves only while it waits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dlio.cluster import liveness
from dlio.cluster.topology import Topology
from dlio.io import world
from dlio.locking.owner import Owner
from dlio.stage.engine import foreground
from dlio.stage.engine.foreground import Foreground
from dlio.stage.meeting.peer import Peer
from dlio.stage.planning.job import Job, Listeners

OWN_SECONDS = 30  # of rank 0's copy
TOTAL = 10**6
MOST_READS = 600  # in a second


def record(rank: int, staged: float, *, has_left: bool = False) -> Peer:
    owner = Owner("host/boot", "pid:[1]", 1, 1)
    return Peer(rank, ("", 0), owner, has_left, int(staged), TOTAL, has_left=has_left)


class Processes:
    """Rank 0's folder, in which each process writes after a pause, or nothing any more after it was killed."""

    def __init__(self, patch: pytest.MonkeyPatch, size: int) -> None:
        self.size, self.seconds, self.ends = size, 0.0, dict[int, float]()
        self.killed = frozenset[int]()
        self.reads, self.listings, self.last_reads = Counter[int](), Counter[int](), 0
        self.watched: Sequence[Peer] = ()
        patch.setattr(world, "monotonic", lambda: self.seconds)
        patch.setattr(world, "sleep", self.sleep)
        patch.setattr(foreground, "MeetingFolder", lambda *_, **__: self)
        patch.setattr(foreground, "meeting_folder", lambda *_, **__: Path())

    def sleep(self, seconds: float) -> None:
        self.seconds += seconds
        assert self.seconds < 10_000, "it waits forever"

    def tell(self, _: Peer) -> bool:
        return True

    def last_words(self, heard_out: set[int]) -> Iterator[Peer]:
        new = {rank for rank, end in self.ends.items() if rank not in self.killed and self.seconds >= end} - heard_out
        self.listings[int(self.seconds)] += 1
        heard_out |= new
        self.last_reads += len(new)
        yield from (record(rank, TOTAL, has_left=True) for rank in new)

    def find(self, rank: int) -> Peer:
        self.reads[int(self.seconds)] += 1
        if rank in self.killed:
            return record(rank, 1)
        if self.seconds >= self.ends[rank]:
            return record(rank, TOTAL, has_left=True)
        pause = max(1.0, self.size / 10)
        return record(rank, 10 + self.seconds // pause)

    def run(self, *, end: float, killed: Sequence[int] = ()) -> float:
        """Returns when rank 0 leaves, if the others end at a time."""
        self.ends, self.killed = dict.fromkeys(range(1, self.size), end), frozenset(killed)
        listeners = Listeners(watch=lambda peers: setattr(self, "watched", peers))
        source: Any = SimpleNamespace(manifest=SimpleNamespace(content_id="0" * 32))
        filler = Foreground(Job(source, Path(), Topology(0, self.size), listeners=listeners))
        node: Any = SimpleNamespace(meeting=None, tell=lambda: None, peer=lambda: record(0, TOTAL, has_left=True))
        node.fill = SimpleNamespace(settled=SimpleNamespace(wait=self.waits_own), failure=None, hanging="")
        filler.begin(node)
        filler.until_complete(node)
        filler.until_unneeded(node)
        return self.seconds

    def waits_own(self, seconds: float) -> bool:
        self.sleep(seconds)
        return self.seconds >= OWN_SECONDS


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], Processes]:
    return lambda size: Processes(monkeypatch, size)


@pytest.mark.parametrize("size", [2, 8, 100, 1000])
@pytest.mark.parametrize("end", [5, 31, 45.5])
def test_rank_0_leaves_soon_after_the_last_one(size: int, end: float, processes: Callable[[int], Processes]) -> None:
    made = processes(size)
    left = made.run(end=end)
    assert max(OWN_SECONDS, end) <= left < max(OWN_SECONDS, end) + 2.5
    assert len(made.watched) == size and all(peer.staged_bytes == TOTAL for peer in made.watched)


@pytest.mark.parametrize("size", [8, 1000])
def test_killed_processes_cost_one_wait_in_all(size: int, processes: Callable[[int], Processes]) -> None:
    patience = max(liveness.LOST_SECONDS, size / 5)
    left = processes(size).run(end=31, killed=range(1, 6))
    assert OWN_SECONDS + patience - 1 <= left < OWN_SECONDS + patience + 2


def test_one_that_writes_seldom_is_not_lost(processes: Callable[[int], Processes]) -> None:
    assert processes(300).run(end=400) >= 400


def test_thousands_that_end_together_are_heard_in_one_round(processes: Callable[[int], Processes]) -> None:
    made = processes(10_000)
    assert 60 <= made.run(end=60) < 62.5
    assert made.last_reads == 9999 and max(made.listings.values()) <= 2
    assert max(count for second, count in made.reads.items() if second > OWN_SECONDS) <= MOST_READS
