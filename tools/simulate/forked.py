"""Schedules in forked processes, several in each: to fork, and to touch what is forked, takes as long as a small one.

No schedule depends on those before it: what they leave in memory is not used, and their files are closed.
"""

from __future__ import annotations

import faulthandler
import os
import pickle
import resource
import shutil
import signal
import tempfile
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import NoReturn, TypeVar, cast

from tools.simulate import scenario
from tools.simulate.cluster import Size
from tools.simulate.data_set import drawn
from tools.simulate.faults import Fault
from tools.simulate.scenario import Outcome

Value = TypeVar("Value")

_MEMORY = Path("/dev/shm")
#: Schedules of one process, which keep its memory until it ends: few in the first ones, so that all processors get
#: some, and more later, since a process takes 0.3 s until it has touched the memory that it shares with its parent.
_FIRST, _LATER = 20, 100
_DESCRIPTORS = Path("/proc/self/fd")  # of this process


@dataclass(frozen=True, slots=True)
class Schedule:
    """What to run.

    Attributes:
        seed, size, faults, keep, until: as `scenario.run` has them.
        seconds: of a processor; one that takes longer is a broken promise, too: then the simulator itself hangs.
    """

    seed: int
    size: Size
    faults: Sequence[Fault]
    keep: bool = False
    until: int | None = None
    seconds: int = 60


def run(schedule: Schedule) -> Outcome:
    """Returns the result of a schedule that has a process to itself."""
    return next(several([schedule]))


def several(schedules: Iterable[Schedule], at_a_time: int = 0) -> Iterator[Outcome]:
    """Yields the results of schedules in their order.

    Args:
        schedules: to run.
        at_a_time: processes; 0 for as many as keep all processors busy.
    """
    left, running, most = iter(schedules), deque[_Group](), at_a_time or 2 * len(os.sched_getaffinity(0))
    begun = 0
    try:
        while True:
            while len(running) < most and (some := list(islice(left, _FIRST if begun < most else _LATER))):
                running.append(_Group(some))
                begun += 1
            if not running:
                return
            yield from running[0].outcomes()
            running.popleft().end()
    finally:
        for group in running:
            group.end()


class _Group:
    """Schedules that a process runs, one after the other."""

    def __init__(self, schedules: Sequence[Schedule]) -> None:
        """Begins them."""
        for schedule in schedules:
            for number, num_bytes in enumerate(schedule.size.files):
                drawn(number, num_bytes)  # once for all schedules
        self._schedules = schedules
        memory = _MEMORY if os.access(_MEMORY, os.W_OK) else None
        self._base = Path(tempfile.mkdtemp(prefix="dlio-simulate-", dir=memory))
        reading, writing = os.pipe()
        self._child = os.fork()
        if not self._child:
            try:
                os.close(reading)
                _work(writing, schedules, self._base)
            finally:  # whatever it raised: the caller's code is not run a second time
                os._exit(1)
        os.close(writing)
        self._source = os.fdopen(reading, "rb")

    def outcomes(self) -> Iterator[Outcome]:
        """Yields what the process sends; what it has not done when it ends is done by another one."""
        done = 0
        with suppress(EOFError, pickle.UnpicklingError):
            while done < len(self._schedules):
                found = pickle.load(self._source)
                done += 1
                yield found
        if done < len(self._schedules):
            seed, seconds = self._schedules[done].seed, self._schedules[done].seconds
            yield Outcome(seed, broken=f"the simulator ended, or took more than {seconds} s of a processor")
            yield from several(self._schedules[done + 1 :], at_a_time=1)

    def end(self) -> None:
        """Waits until the process has ended, after the schedule that it runs, and removes what it leaves."""
        self._source.close()
        os.waitpid(self._child, 0)
        shutil.rmtree(self._base, ignore_errors=True)


def _work(writing: int, schedules: Sequence[Schedule], base: Path) -> NoReturn:
    """Runs schedules in this process, and ends it; no `finally` of a simulated process runs."""
    faulthandler.enable(2)  # pytest's sys.stderr may have no descriptor
    faulthandler.register(signal.SIGXCPU, 2, chain=True)  # says where it hangs
    _close_all_but(writing)  # the results of others, whose end only their parent must read
    with suppress(BrokenPipeError), os.fdopen(writing, "wb") as sink:
        for number, each in enumerate(schedules):
            resource.setrlimit(resource.RLIMIT_CPU, (round(time.process_time()) + each.seconds, resource.RLIM_INFINITY))
            (folder := base / f"{number:02d}").mkdir()
            try:
                outcome = scenario.run(each.seed, each.size, each.faults, folder, keep=each.keep, until=each.until)
            except KeyboardInterrupt:
                raise
            except BaseException:
                outcome = Outcome(each.seed, broken=f"the simulator failed: {traceback.format_exc()}")
            pickle.dump(outcome, sink)
            sink.flush()
            _close_all_but(writing)
            shutil.rmtree(folder)
    os._exit(0)


def _close_all_but(descriptor: int) -> None:
    """Closes all files of this process but one, and what it prints to."""
    for other in {int(path.name) for path in _DESCRIPTORS.iterdir()} - {0, 1, 2, descriptor}:
        with suppress(OSError):  # the one by which they were listed
            os.close(other)


def apart(call: Callable[[], Value]) -> Value:
    """Returns what a call returns in its own process; raises RuntimeError with what it raised."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(reading)
        try:
            found: object = call()
        except BaseException:
            found = RuntimeError(traceback.format_exc())
        _end_with(writing, found)
    os.close(writing)
    try:
        value = pickle.loads(_received(reading))
    finally:
        os.close(reading)
        os.waitpid(child, 0)
    if isinstance(value, RuntimeError):
        raise value
    return cast(Value, value)


def _end_with(writing: int, value: object) -> NoReturn:
    """Ends this process with a value for its parent."""
    with os.fdopen(writing, "wb") as sink:
        pickle.dump(value, sink)
    os._exit(0)


def _received(reading: int) -> bytes:
    found = bytearray()
    while more := os.read(reading, 1 << 20):
        found += more
    return bytes(found)
