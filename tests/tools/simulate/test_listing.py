"""Processes that list a folder for each other: all get the list in the end, and the oracle detects wrong ones."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

import pytest

from dlio.stage.meeting import listing
from tools.simulate import forked, scenario
from tools.simulate.cluster import Size
from tools.simulate.faults import Fault
from tools.simulate.scheduler import S

SEED = next(seed for seed in count(7) if scenario.kind_of(seed).verb == "list")  # one whose node 0, LATE, comes first
SIZE = Size(4, (1, 20_000))
LATE = Fault(0, "late", 0, 1, 20_000, 60 * S)
SLOW = Fault(0, "think", 0, 1, 40_000, 60 * S)


def _outcome(faults: Sequence[Fault]) -> scenario.Outcome:
    return forked.run(forked.Schedule(SEED, SIZE, faults))


def _in_part(data: bytes, level: int, compress: Callable[..., bytes] = zlib.compress) -> bytes:
    return compress(data[:-1], level)


def _present(lists: Any, node: int, beat: Callable[[], None], following: Any = listing._Lists._next) -> Any:
    """Returns the list that is being made already, if one is."""
    if not lists._begun:
        return following(lists, node, beat)
    while (found := lists._latest_from(lists._begun)) is None:
        beat()
    return found


@pytest.mark.parametrize(
    ("owner", "name", "wrong", "faults", "broken"),
    [
        (listing.zlib, "compress", _in_part, [], "whole-list"),
        (listing._Lists, "_next", _present, [LATE, SLOW], "whole-list"),
        (listing._Lists, "_have_all_asked", lambda lists: True, [], "listed-once"),
    ],
    ids=["in part", "of before", "too early"],
)
def test_wrong_lists_are_noticed(
    owner: Any, name: str, wrong: Any, faults: Sequence[Fault], broken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not _outcome(faults).broken
    monkeypatch.setattr(owner, name, wrong)
    assert _outcome(faults).broken.startswith(broken)


def test_when_a_process_is_killed_that_lists_or_waits_all_have_a_list_in_the_end() -> None:
    traces, num_events = set(), _outcome([SLOW]).events
    events = range(20, num_events, num_events // 6)
    schedules = (forked.Schedule(SEED, SIZE, [SLOW, Fault(event, "kill", 0, 1, event, 0)]) for event in events)
    for event, found in zip(events, forked.several(schedules), strict=True):
        assert not found.broken, f"killed before event {event}: {found.broken}"
        assert found.happened["kill"] == 1
        traces.add(found.digest)
    assert len(traces) > 4
