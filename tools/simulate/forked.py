"""A schedule in its own process, which is forked: what one leaves in memory changes no other one."""

from __future__ import annotations

import faulthandler
import os
import pickle
import resource
import shutil
import signal
import tempfile
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NoReturn, TypeVar, cast

from tools.simulate import scenario
from tools.simulate.cluster import Size
from tools.simulate.data_set import drawn
from tools.simulate.faults import Fault
from tools.simulate.scenario import Outcome

Value = TypeVar("Value")

_MEMORY = Path("/dev/shm")
_SECONDS = 60  # of a processor: then the simulator itself hangs


def run(
    seed: int, size: Size, faults: Sequence[Fault], *, keep: bool = False, until: int | None = None,
    seconds: int = _SECONDS,
) -> Outcome:  # fmt: skip
    """Returns as `scenario.run`; one that takes too long is a broken promise, too."""
    return begun(seed, size, faults, keep=keep, until=until, seconds=seconds)()


def begun(
    seed: int, size: Size, faults: Sequence[Fault], *, keep: bool = False, until: int | None = None,
    seconds: int = _SECONDS,
) -> Callable[[], Outcome]:  # fmt: skip
    """Begins a schedule, and returns what waits for its end, as `run`."""
    for number, num_bytes in enumerate(size.files):
        drawn(number, num_bytes)  # once for all schedules
    base = Path(tempfile.mkdtemp(prefix="dlio-simulate-", dir=_MEMORY if os.access(_MEMORY, os.W_OK) else None))
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(reading)
        _child(writing, seed, size, faults, base, keep, until, seconds)
    os.close(writing)

    def finish() -> Outcome:
        try:
            data = _received(reading)
        finally:
            os.close(reading)
            os.waitpid(child, 0)
            shutil.rmtree(base, ignore_errors=True)
        if not data:
            return Outcome(seed, broken=f"the simulator ended, or took more than {seconds} s of a processor")
        found: Outcome = pickle.loads(data)
        return found

    return finish


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


def several(begin: Callable[[int], Callable[[], Outcome]], seeds: Iterable[int]) -> Iterator[Outcome]:
    """Yields the outcomes of schedules in the order of their seeds; as many at a time as keep all processors busy."""
    running, most = deque[Callable[[], Outcome]](), 2 * len(os.sched_getaffinity(0))
    for seed in seeds:
        running.append(begin(seed))
        if len(running) == most:
            yield running.popleft()()
    while running:
        yield running.popleft()()


def _child(
    writing: int,
    seed: int,
    size: Size,
    faults: Sequence[Fault],
    base: Path,
    keep: bool,
    until: int | None,
    seconds: int,
) -> None:
    faulthandler.enable()
    faulthandler.register(signal.SIGXCPU, chain=True)  # says where it hangs
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
    try:
        outcome = scenario.run(seed, size, faults, base, keep=keep, until=until)
    except BaseException:
        outcome = Outcome(seed, broken=f"the simulator failed: {traceback.format_exc()}")
    _end_with(writing, outcome)


def _end_with(writing: int, value: object) -> NoReturn:
    """Ends this process with a value for its parent; no `finally` of a simulated process runs."""
    with os.fdopen(writing, "wb") as sink:
        pickle.dump(value, sink)
    os._exit(0)


def _received(reading: int) -> bytes:
    found = bytearray()
    while more := os.read(reading, 1 << 20):
        found += more
    return bytes(found)
