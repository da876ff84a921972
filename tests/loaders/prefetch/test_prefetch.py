"""Work done ahead of use: its bound, hints, and threads that hang."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial

import pytest

from dlio.errors import StorageError, TimedOutError
from dlio.loaders.prefetch.work import Work, prefetched
from tests.helpers.interrupts import interrupt_at_each_line


def test_no_more_is_made_than_the_bound_allows() -> None:
    begun: list[int] = []

    def works() -> Iterator[Work[int]]:
        for number in range(20):
            begun.append(number)
            yield Work(number, (lambda: None,))

    items = prefetched(works(), num_threads=2, prefetch=3)
    for expected in range(5):
        assert next(items) == expected
        assert len(begun) == expected + 4
    items.close()
    assert len(begun) == 8


def test_hints_come_before_the_parts_and_their_errors_are_dropped() -> None:
    hinted = [threading.Event() for _ in range(4)]

    def hint(number: int) -> None:
        hinted[number].set()
        raise StorageError("the disk was removed")

    def works() -> Iterator[Work[int]]:
        for number in range(4):
            last = hinted[min(number + 2, 3)]
            yield Work(number, (lambda last=last: last.wait(60),), hint=partial(hint, number))  # type: ignore[misc]

    assert list(prefetched(works(), num_threads=1, prefetch=2)) == [0, 1, 2, 3]
    assert all(event.is_set() for event in hinted)


def test_an_interrupt_at_any_moment_leaves_no_thread_waiting(caplog: pytest.LogCaptureFixture) -> None:
    begun = threading.Semaphore(0)

    def part() -> None:
        begun.release()
        time.sleep(0.005)

    def works() -> Iterator[Work[int]]:
        yield Work(0, (part,) * 3)
        for _ in range(3):  # nothing but the lines of `wait` can be interrupted while parts run
            begun.acquire()
        yield Work(1, (lambda: None,))

    def run() -> None:
        with closing(prefetched(works(), num_threads=4, prefetch=1, timeout=10)) as items:
            assert list(items) == [0, 1]

    assert interrupt_at_each_line(run) > 50
    assert "hang" not in caplog.text


@pytest.mark.parametrize("timeout", [None, 60])
def test_an_alarm_of_the_user_comes_through(timeout: float | None) -> None:
    def ring(number: int, frame: object) -> None:
        raise TimeoutError("the user's alarm")

    previous = signal.signal(signal.SIGALRM, ring)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        with pytest.raises(TimeoutError, match="the user's alarm"):
            list(prefetched([Work(1, (partial(time.sleep, 0.5),))], 1, 1, timeout))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


class Hanging:
    """Work of one part that ends at once and two that hang; it is waited for when all have begun."""

    def __init__(self, first: Callable[[], None]) -> None:
        self.go_on, self.begun = threading.Event(), threading.Semaphore(0)
        self.first = first

    def works(self) -> Iterator[Work[int]]:
        yield Work(1, (self.first, self.hang, self.hang))
        for _ in range(2):
            self.begun.acquire(timeout=60)

    def hang(self) -> None:
        self.begun.release()
        self.go_on.wait(60)


def test_a_slow_part_is_a_timeout() -> None:
    hanging = Hanging(lambda: None)
    items = prefetched(hanging.works(), num_threads=2, prefetch=1, timeout=0.01)
    with pytest.raises(TimedOutError, match=r"longer than 0.01 s, and 2 of its 3 parts .* the first is part 1: check"):
        next(items)
    assert any(thread.name == "dlio-loader" for thread in threading.enumerate())
    hanging.go_on.set()


def test_the_timeout_is_for_the_batch_not_its_parts() -> None:
    items = prefetched([Work(1, (partial(time.sleep, 0.15),) * 10)], num_threads=1, prefetch=1, timeout=0.2)
    with pytest.raises(TimedOutError):
        next(items)


def test_what_failed_is_raised_though_another_part_hangs() -> None:
    def fail() -> None:
        raise StorageError("the disk was removed")

    hanging = Hanging(fail)
    items = prefetched(hanging.works(), num_threads=2, prefetch=1, timeout=0.01)
    with pytest.raises(StorageError, match="the disk was removed"):
        next(items)
    hanging.go_on.set()


def test_late_hints_are_left_out() -> None:
    hinted: list[int] = []
    go_on = threading.Event()

    def hint(number: int) -> None:
        go_on.wait(60)
        hinted.append(number)

    works = (Work(number, (lambda: None,), hint=partial(hint, number)) for number in range(20))
    items = prefetched(works, num_threads=1, prefetch=2)
    assert [next(items) for _ in range(18)] == list(range(18))
    go_on.set()
    assert list(items) == [18, 19]
    assert len(set(hinted) - {18, 19}) <= 1, "except for the one that had begun"


@pytest.mark.parametrize("timeout", ["0.01", "None"])
def test_threads_that_hang_do_not_keep_the_interpreter_from_exiting(timeout: str) -> None:
    code = (
        "import threading\n"
        "from dlio.io import threads\n"
        "from dlio.loaders.prefetch.work import Work, prefetched\n"
        "threads._EXIT_SECONDS = 0.01\n"
        "works = [Work(0, ()), Work(1, (threading.Event().wait,))]\n"
        f"items = prefetched(works, num_threads=1, prefetch=1, timeout={timeout})\n"
        "print(next(items), flush=True)\n"
        f"{'next(items)' if timeout != 'None' else ''}"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "0\n"
    assert done.returncode == (timeout != "None"), done.stderr
    assert ("TimedOutError" in done.stderr) == (timeout != "None")
