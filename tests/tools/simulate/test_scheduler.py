"""The scheduler of simulations: order, time, ends of processes, and the trace."""

from __future__ import annotations

import pytest

from tools.simulate.process import Process
from tools.simulate.scheduler import MS, LivelockError, S, Scheduler


def _process(scheduler: Scheduler, node: int = 0) -> Process:
    return scheduler.process(node, 100, f"boot{node}", f"n{node}", 0)


def _run(seed: int) -> tuple[list[str], str]:
    scheduler, said = Scheduler(seed), list[str]()
    process = _process(scheduler)

    def work(name: str) -> None:
        for step in range(3):
            said.append(f"{name}{step}")
            scheduler.note("step", step)
            scheduler.pause(MS)

    for name in "abcd":
        scheduler.spawn(process, lambda name=name: work(name), name)
    assert not scheduler.run()
    assert scheduler.now == 3 * MS
    return said, scheduler.digest()


def test_a_seed_decides_the_order_and_the_digest() -> None:
    assert _run(1) == _run(1)
    assert len({tuple(_run(seed)[0]) for seed in range(20)}) > 10
    assert len({_run(seed)[1] for seed in range(20)}) > 10


def test_a_parked_task_is_woken_or_times_out() -> None:
    scheduler, said = Scheduler(1), list[object]()
    process = _process(scheduler)

    def wait(timeout: int) -> None:
        said.append((scheduler.park(timeout), scheduler.now))

    woken = scheduler.spawn(process, lambda: wait(5 * S), "woken")
    scheduler.spawn(process, lambda: wait(1 * S), "late")
    scheduler.call_at(2 * S, lambda: scheduler.wake(woken))
    scheduler.run()
    assert said == [(False, 1 * S), (True, 2 * S)]
    assert scheduler.now == 5 * S  # the void timer


@pytest.mark.parametrize("by_itself", [True, False])
def test_a_killed_process_runs_no_finally(by_itself: bool) -> None:
    scheduler, said = Scheduler(1), list[str]()
    process = _process(scheduler)

    def work() -> None:
        try:
            scheduler.pause(S)
            if by_itself:
                process.kill()
            scheduler.pause(S)
            said.append("continued")
        finally:
            said.append("finally")

    scheduler.spawn(process, work, "work")
    scheduler.call_at(S + MS, process.kill)
    scheduler.run()
    assert said == []
    scheduler.end()
    assert said == ["finally"]  # only to free it, once the schedule is over


def test_a_stopped_process_goes_on_later() -> None:
    scheduler, said = Scheduler(1), list[int]()
    process = _process(scheduler)
    scheduler.spawn(process, lambda: (scheduler.pause(S), said.append(scheduler.now)), "work")
    scheduler.call_at(MS, process.stop)
    scheduler.call_at(3 * S, process.resume)
    scheduler.run()
    assert said == [3 * S]


def test_a_task_that_fails_is_kept_and_its_end_is_seen() -> None:
    scheduler, said = Scheduler(1), list[bool]()
    process = _process(scheduler)

    def fail() -> None:
        scheduler.pause(S)
        raise ValueError("so")

    failing = scheduler.spawn(process, fail, "failing")
    scheduler.spawn(process, lambda: said.extend([scheduler.join(failing, MS), scheduler.join(failing)]), "joins")
    scheduler.run()
    assert said == [False, True]
    assert [str(task.error) for task in scheduler.failed] == ["so"]


def test_time_that_does_not_go_on_is_an_error() -> None:
    scheduler = Scheduler(1)
    process = _process(scheduler)

    def spin() -> None:
        while True:
            scheduler.pause(0)

    scheduler.spawn(process, spin, "spin")
    with pytest.raises(LivelockError, match="without waiting"):
        scheduler.run()
    scheduler.end()
