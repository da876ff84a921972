"""Engines and the bounded map: results come as they finish, errors after them, and nothing waits for the dead."""

from __future__ import annotations

import faulthandler
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import partial

import pytest

from dlio import executors
from dlio.errors import SourceError, StorageError, UsageError
from dlio.executors import Pool, map_bounded, processes, serial
from dlio.io.limits import num_usable_cores
from dlio.io.threads import Threads
from dlio.testing.engine_scenarios import fail_on_three
from tests.helpers.interrupts import interrupt_at_each_line


def die_on_three(number):
    if number == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def square(number: int) -> int:
    return number * number


def process_of(_: int) -> int:
    time.sleep(0.05)
    return os.getpid()


@pytest.fixture(params=["serial", "processes"])
def pool(request):
    with executors.open_engine(request.param, 2) as pool:
        yield pool


def test_every_task_gives_its_result(pool):
    assert sorted(map_bounded(pool, square, range(50))) == [n * n for n in range(50)]


def test_no_tasks_give_no_results(pool):
    assert list(map_bounded(pool, square, [])) == []


def test_an_error_comes_after_the_results_of_what_was_running(pool):
    results = []
    with pytest.raises(SourceError, match="three"):
        for result in map_bounded(pool, fail_on_three, range(10_000)):
            results.append(result)  # noqa: PERF402  what came before the error is kept
    assert set(results) >= {0, 1, 2}
    assert len(results) < 9_999  # how many depends on the other worker's timing


class Giving(Executor):
    """Threads that can be given up."""

    def __init__(self, count):
        self.threads = Threads(count, "test-worker")

    def submit(self, fn, /, *args, **kwargs):
        return self.threads.submit(partial(fn, *args, **kwargs))


def test_an_interrupt_at_any_moment_leaves_no_worker_waiting():
    begun = threading.Semaphore(0)

    def work(_):
        begun.release()
        time.sleep(0.005)

    def tasks():
        yield from range(2)
        for _ in range(2):  # the interrupt comes while both workers work
            begun.acquire()
        yield 2

    def run():
        executor = Giving(2)
        try:
            assert len(list(map_bounded(Pool(executor, 2), work, tasks()))) == 3
        finally:
            assert executor.threads.end(10)

    assert interrupt_at_each_line(run) > 50


@pytest.mark.parametrize("workers", [1, 2])
def test_a_dead_worker_is_an_error_that_names_its_task(workers):
    with processes.open(workers, None) as pool, pytest.raises(StorageError, match=r"died \(SIGKILL.* working on .*3"):
        list(map_bounded(pool, die_on_three, range(100)))


def end_by(number: signal.Signals) -> None:
    faulthandler.disable()  # pytest's prints a traceback
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.raise_signal(number)


@pytest.mark.parametrize(
    ("end", "ending", "advice"),
    [
        (partial(end_by, signal.SIGSEGV), "SIGSEGV", "; PYTHONFAULTHANDLER=1 shows where it crashed"),
        (
            partial(end_by, signal.SIGKILL),
            "SIGKILL: killed, or out of memory",
            "; use fewer --workers if memory was short",
        ),
        (partial(end_by, signal.SIGTERM), "SIGTERM", ""),
        (partial(end_by, signal.SIGRTMIN + 3), f"signal {signal.SIGRTMIN + 3}", ""),
        (partial(os._exit, 3), "exit status 3", ""),
        (partial(os._exit, 0), "exit status 0", ""),
    ],
    ids=["SIGSEGV", "SIGKILL", "SIGTERM", "real-time signal", "exit 3", "exit 0"],
)
def test_the_error_says_how_a_worker_ended(end, ending, advice):
    """The other worker, which the pool ends by SIGTERM, is not taken for the one that died."""
    with processes.open(2, None) as pool, pytest.raises(StorageError) as caught:
        list(map_bounded(pool, type(end).__call__, [end]))
    text = str(caught.value)
    assert text.startswith(f"a worker died ({ending}) while working on ")
    assert text.endswith(f": run the same command again, finished shards are kept{advice}")


def test_a_pool_that_is_broken_already_is_an_error_too():
    with processes.open(1, None) as pool:
        for _ in range(2):
            with pytest.raises(StorageError, match=r"a worker died \(SIGKILL: "):
                list(map_bounded(pool, die_on_three, [3, 4, 5]))


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

    with ThreadPoolExecutor(2) as threads:
        results = map_bounded(Pool(threads, 2), work, tasks())
        first = next(results)
        assert len(taken) <= 5
        assert sorted([first, *results]) == list(range(40))


def test_a_serial_engine_runs_nothing_ahead():
    done = []
    with serial.open(2, None) as pool:
        for number in map_bounded(pool, lambda n: done.append(n) or n, range(5)):
            assert done == list(range(number + 1))


def test_processes_are_other_processes():
    with processes.open(2, None) as pool:
        found = set(map_bounded(pool, process_of, range(8)))
    assert len(found) == 2
    assert os.getpid() not in found


def test_an_interrupt_is_left_to_the_parent():
    with processes.open(1, None) as pool:
        assert pool.executor.submit(signal.getsignal, signal.SIGINT).result() == signal.SIG_IGN


def test_workers_end_with_a_parent_that_is_killed():
    reading, writing = os.pipe()
    parent = os.fork()
    if parent == 0:
        with processes.open(2, None) as pool:
            workers = set(map_bounded(pool, process_of, range(8)))
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
    with pytest.raises(UsageError, match=r"'steam' is not an engine: expected .*processes, .*serial"):
        executors.open_engine("steam", 1)


def test_by_default_workers_are_as_many_as_usable_cores():
    assert executors.num_workers(None) == num_usable_cores()
    assert executors.num_workers(3) == 3


@pytest.mark.parametrize("workers", [0, -3, "2", 1.5])
def test_what_is_no_number_of_workers_is_refused(workers):
    with pytest.raises(UsageError, match=f"number of workers must be a whole number >= 1, found {workers!r}"):
        executors.num_workers(workers)


_SLOW_START = """
import os, signal, threading, time
from multiprocessing.util import register_after_fork
from dlio.executors import processes

register_after_fork(processes, lambda _: time.sleep(0.5))
threading.Timer(0.1, lambda: os.killpg(0, signal.SIGINT)).start()
try:
    with processes.open(2, None) as pool:
        pool.executor.submit(abs, -1).result()
        time.sleep(60)
except KeyboardInterrupt:
    print("interrupted")
"""


def test_an_interrupt_meets_no_worker_that_is_just_being_forked() -> None:
    run = subprocess.run([sys.executable, "-c", _SLOW_START], start_new_session=True, capture_output=True, check=True)
    assert (run.stdout, run.stderr) == (b"interrupted\n", b"")
