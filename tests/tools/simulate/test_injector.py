"""Faults come when they are due, and where."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.simulate import faults, forked, scenario
from tools.simulate.causes import Read
from tools.simulate.cluster import MEET, Cluster
from tools.simulate.disk import WRITE
from tools.simulate.faults import FINISH, Fault
from tools.simulate.injector import Injector
from tools.simulate.network import Weather
from tools.simulate.scheduler import S, Scheduler

_SIZE = scenario.Size(3, (300_000, 20_000, 65_537))


def _seed(verb: str, strategy: str) -> int:
    """Returns the first seed of a kind of job."""
    return next(seed for seed in range(1, 100) if scenario.kind_of(seed) == scenario.Kind(verb, strategy))


def _run(seed: int, *due: Fault) -> scenario.Outcome:
    outcome = forked.run(forked.Schedule(seed, _SIZE, due, keep=True))
    assert not outcome.broken
    return outcome


@pytest.mark.parametrize("moment", ["name", "write", FINISH])
def test_a_process_is_killed_at_the_very_moment_that_was_drawn(moment: str) -> None:
    trace = _run(_seed("stage", "broadcast"), Fault(2, "kill", 0, 1, 0, S, moment)).trace
    killed = next(number for number, each in enumerate(trace) if " - kill " in each)  # not by itself
    process = trace[killed].split()[-1]
    assert not [each for each in trace[killed + 1 :] if each.split()[1].startswith(f"{process}/")]


def test_who_never_comes_and_who_is_lost_are_not_waited_for() -> None:
    seed = _seed("stage", "broadcast")
    assert _run(seed, Fault(0, "absent", 1, 2, 0, S)).happened == {"absent": 1}
    outcome = _run(seed, Fault(3, "gone", 0, 1, 0, S, "write"), Fault(0, "absent", 1, 2, 0, S))
    assert outcome.happened == {"absent": 1, "gone": 1}
    assert outcome.ended < 150 * S


def test_a_process_id_is_used_again() -> None:
    size = scenario.Size(2, (300_000,))
    due = [Fault(0, "pids", 0, 1, 1000, S), Fault(14, "kill", 0, 1, 0, S, "write")]  # in a later tick than its start
    trace = forked.run(forked.Schedule(_seed("stage", "broadcast"), size, due, keep=True)).trace
    killed = next(each for each in trace if " kill " in each).split()[-1]
    names = {each.split()[1].partition("/")[0] for each in trace} - {killed}
    assert killed.rpartition(".")[0] in {name.rpartition(".")[0] for name in names}


def test_what_shows_little_by_itself_comes_to_all_nodes_with_what_shows_it() -> None:
    size = scenario.sized(1, 5, 8)
    found = [faults.drawn(seed, size, ["power", "disk-eio-sync"]) for seed in range(200)]
    nodes = [{fault.node for fault in each if fault.kind == "disk-eio-sync"} for each in found]
    assert sum(each == set(range(5)) for each in nodes) > 10
    everywhere = [each for each, on in zip(found, nodes, strict=True) if on == set(range(5))]
    power = [fault.moment for each in everywhere for fault in each if fault.kind == "power"]
    assert power.count(FINISH) > 0.9 * len(power) > 0  # the moment from which on nothing may be lost


def test_the_processes_of_a_second_step_do_the_same() -> None:
    trace = _run(_seed("stage", "broadcast"), Fault(0, "twice", 1, 2, 1, S)).trace
    assert len({each.split()[1] for each in trace if " finished " in each}) == 2 * _SIZE.nodes


def test_what_a_loader_doubts_is_read_from_the_source_again() -> None:
    trace = _run(_seed("load", "replicate"), Fault(0, "doubt", 1, 2, 1000, S), Fault(0, "think", 1, 2, 1, S)).trace
    assert [each for each in trace if "from the source shard-00000.bin" in each]


@pytest.mark.parametrize("hangs", [True, False])
def test_a_call_that_hangs_longer_than_its_fault_lasts_is_a_cause_until_it_returns(hangs: bool, tmp_path: Path) -> None:
    scheduler = Scheduler(1)
    cluster = Cluster(scheduler, tmp_path, _SIZE, Weather())
    nodes = [scheduler.process(node, 100, "boot", f"node{node}", 0) for node in range(_SIZE.nodes)]
    for node in range(_SIZE.nodes):
        cluster.oracle.causes.comes(node)
    Injector(cluster).plan([Fault(0, "meet-hang", 2, 0, 60_000, S)])
    if hangs:
        scheduler.spawn(nodes[2], lambda: cluster.storage.disks[MEET].wait(WRITE), "task")
    scheduler.run()
    others = [Read(0, nodes[0])]
    assert cluster.oracle.causes.excuses(Read(65 * S, nodes[2]), others) == hangs
    assert not cluster.oracle.causes.excuses(Read(100 * S, nodes[2]), others)


def test_few_kinds_of_faults_come_in_many_schedules() -> None:
    size = scenario.small(1)
    counts = [len({fault.kind for fault in faults.drawn(seed, size, faults.kinds())}) for seed in range(500)]
    assert 0 < counts.count(0) < 150
    assert sum(count in (1, 2, 3) for count in counts) > 150
    assert max(counts) > 20
