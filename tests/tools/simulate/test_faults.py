"""Lists of faults: drawn by a seed, written down, replayed, and shrunk."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dlio.errors import UsageError
from tools.simulate.faults import KINDS, VERSION, Fault, Schedule, drawn, kinds_of, seed_of, shrunk
from tools.simulate.scheduler import S


def test_a_seed_draws_its_faults_and_all_kinds_come():
    found = [drawn(seed, 5, KINDS, 10 * S) for seed in range(300)]
    assert found[7] == drawn(7, 5, KINDS, 10 * S)
    assert {fault.kind for faults in found for fault in faults} == KINDS.keys()
    assert min(map(len, found)) < 5


def test_a_kind_that_is_not_wanted_changes_nothing_of_the_others():
    for seed in range(20):
        some = [fault for fault in drawn(seed, 5, KINDS, 10 * S) if fault.kind in ("kill", "cut")]
        assert some == list(drawn(seed, 5, kinds_of("kill,cut"), 10 * S))


def test_kinds_are_named_with_commas():
    assert kinds_of("all") == tuple(KINDS)
    assert kinds_of("none") == ()
    assert kinds_of("kill, power") == ("kill", "power")
    assert set(kinds_of("disk-")) == {kind for kind in KINDS if kind.startswith("disk-")}


@pytest.mark.parametrize("text", ["fire", "kill,fire", "fire-", ""])
def test_an_unknown_fault_is_an_error(text):
    with pytest.raises(UsageError, match="is not a fault: expected all, none, or some of kill"):
        kinds_of(text)


def test_a_seed_of_another_version_is_an_error():
    assert seed_of("7") == seed_of(f"7@{VERSION}") == 7
    with pytest.raises(UsageError, match=f"of version {VERSION + 1} of the simulator, and this is version {VERSION}"):
        seed_of(f"7@{VERSION + 1}")
    with pytest.raises(UsageError, match="'x' is not a seed"):
        seed_of("x")


def test_a_schedule_is_written_down_and_read_again():
    schedule = Schedule(7, 4, 3, drawn(7, 4, KINDS, 10 * S))
    assert Schedule.from_json(schedule.to_json()) == schedule
    with pytest.raises(UsageError, match="another schedule: check out the commit"):
        Schedule.from_json(schedule.to_json().replace(f'"version": {VERSION}', '"version": 99'))
    with pytest.raises(UsageError, match="not a recorded schedule"):
        Schedule.from_json("[]")
    with pytest.raises(UsageError, match="'fire' is not a fault"):
        Schedule.from_json(Schedule(7, faults=(Fault(0, "fire", 0),)).to_json())


def test_what_does_not_matter_is_left_out():
    culprits = {Fault(3, "kill", 1), Fault(8, "cut", 0, 1)}
    faults = tuple(sorted([*culprits, *(Fault(at, "pause", at % 5) for at in range(20))]))
    tried = []

    def fails(schedule: Schedule) -> bool:
        tried.append(schedule)
        return culprits <= set(schedule.faults) and schedule.nodes >= 3

    small = shrunk(Schedule(7, 16, 8, faults), fails)
    assert (set(small.faults), small.nodes, small.files) == (culprits, 3, 1)
    assert len(tried) < 100


def test_a_schedule_that_fails_without_faults_keeps_none():
    schedule = Schedule(7, 5, 8, (Fault(1, "kill", 1), Fault(2, "kill", 2)))
    assert shrunk(schedule, lambda _: True) == replace(schedule, faults=(), nodes=1, files=1)
