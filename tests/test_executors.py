"""Engines and the bounded map: results come as they finish, errors after them, and nothing waits for the dead."""

from __future__ import annotations

import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from dlio import executors
from dlio.errors import SourceError, StorageError, UsageError


def square(number: int) -> int:
    return number * number


def fail_on_three(number: int) -> int:
    if number == 3:
        raise SourceError("three")
    return number


def die_on_three(number: int) -> int:
    if number == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def process_of(_: int) -> int:
    time.sleep(0.05)
    return os.getpid()


@pytest.fixture(params=["serial", "processes"])
def engine(request):
    with executors.open_engine(request.param, 2) as executor:
        yield executor


def test_every_task_gives_its_result(engine):
    assert sorted(executors.map_bounded(engine, square, range(50), in_flight=4)) == [n * n for n in range(50)]


def test_no_tasks_give_no_results(engine):
    assert list(executors.map_bounded(engine, square, [], in_flight=4)) == []


def test_an_error_comes_after_the_results_of_what_was_running(engine):
    results = []
    with pytest.raises(SourceError, match="three"):
        for result in executors.map_bounded(engine, fail_on_three, range(100), in_flight=4):
            results.append(result)  # noqa: PERF402  what came before the error is kept
    assert set(results) >= {0, 1, 2}
    assert len(results) < 10


@pytest.mark.parametrize("workers", [1, 2])
def test_a_dead_worker_is_an_error_that_names_its_task(workers):
    with executors.processes(workers) as pool, pytest.raises(StorageError, match=r"a worker died.* at work on .*3"):
        list(executors.map_bounded(pool, die_on_three, range(100), in_flight=workers))


def test_a_pool_that_is_broken_already_is_an_error_too():
    with executors.processes(1) as pool:
        for _ in range(2):
            with pytest.raises(StorageError, match="a worker died"):
                list(executors.map_bounded(pool, die_on_three, [3, 4, 5], in_flight=2))


def test_tasks_are_taken_as_they_are_needed():
    taken, running, most = [], set(), []
    lock = threading.Lock()

    def tasks():
        for number in range(40):
            taken.append(number)
            yield number

    def work(number):
        with lock:
            running.add(number)
            most.append(len(taken))
        time.sleep(0.001)
        with lock:
            running.discard(number)
        return number

    with ThreadPoolExecutor(8) as pool:
        results = executors.map_bounded(pool, work, tasks(), in_flight=3)
        first = next(results)
        assert len(taken) <= 4
        assert sorted([first, *results]) == list(range(40))


def test_a_serial_engine_runs_nothing_ahead():
    done = []
    with executors.serial(2) as pool:
        for number in executors.map_bounded(pool, lambda n: done.append(n) or n, range(5), in_flight=4):
            assert done == list(range(number + 1))


def test_processes_are_other_processes():
    with executors.processes(2) as pool:
        found = set(executors.map_bounded(pool, process_of, range(8), in_flight=8))
    assert len(found) == 2
    assert os.getpid() not in found


def test_an_interrupt_is_left_to_the_parent():
    with executors.processes(1) as pool:
        assert pool.submit(signal.getsignal, signal.SIGINT).result() == signal.SIG_IGN


def test_workers_end_with_a_parent_that_is_killed():
    reading, writing = os.pipe()
    parent = os.fork()
    if parent == 0:
        with executors.processes(2) as pool:
            workers = set(executors.map_bounded(pool, process_of, range(8), in_flight=8))
            os.write(writing, " ".join(map(str, workers)).encode())
            time.sleep(60)
    workers = os.read(reading, 1000).decode().split()
    os.kill(parent, signal.SIGKILL)
    os.waitpid(parent, 0)
    os.close(reading)
    os.close(writing)
    assert len(workers) == 2
    deadline = time.monotonic() + 20
    while any(_runs(worker) for worker in workers) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not any(_runs(worker) for worker in workers)


def _runs(process: str) -> bool:
    try:
        with open(f"/proc/{process}/stat") as file:  # noqa: PTH123
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_an_unknown_engine_is_refused():
    with pytest.raises(UsageError, match="'steam' is no engine: expected one of processes, serial"):
        executors.open_engine("steam", 1)


def test_the_default_number_of_workers_is_what_this_process_may_use():
    assert executors.default_workers() == len(os.sched_getaffinity(0))
