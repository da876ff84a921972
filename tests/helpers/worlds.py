"""One behaviour in two worlds: what the engine relies on, tested with the system and with a simulation."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from dlio.io import world
from tools.simulate.chance import Chance
from tools.simulate.clock import Clock
from tools.simulate.network import Network, Weather
from tools.simulate.scheduler import Scheduler
from tools.simulate.storage import Storage
from tools.simulate.world import Machine, SimulatedWorld

InWorld = Callable[[Callable[[], None]], None]


def simulated(folder: Path, seed: int = 1, weather: Weather | None = None, nodes: int = 1) -> SimulatedWorld:
    """Returns a world of some nodes whose files lie in a folder."""
    scheduler = Scheduler(seed)
    scheduler.eagerness = 0.2
    clocks = [Clock(scheduler) for _ in range(nodes)]
    storage = Storage(scheduler, folder.parent)
    storage.add(folder.name, clocks[0])
    network = Network(scheduler, Chance(seed, "network"), weather or Weather(), nodes)
    return SimulatedWorld(scheduler, network, storage, [Machine(n, clock) for n, clock in enumerate(clocks)])


def run_in(made: SimulatedWorld, call: Callable[[], None]) -> None:
    """Makes a call in a task of the first node, and raises what it or a thread of its raises."""
    scheduler = made.scheduler
    task = scheduler.spawn(made.process(0), call, "test")
    with world.installed(made):
        while not task.has_ended and scheduler.run(scheduler.now + 10**9):
            assert scheduler.now < 10**12, "the test waits forever"
    scheduler.end()
    for failed in scheduler.failed:
        assert failed.error
        raise failed.error
    assert task.has_ended


@pytest.fixture(params=["system", *range(5)])
def in_world(request: pytest.FixtureRequest, tmp_path: Path) -> InWorld:
    """Makes a call in a world: the system's, or a simulation by one of several seeds."""
    if request.param == "system":
        return lambda call: call()
    weather = Weather(pieces=0.3 * (request.param % 2))
    return lambda call: run_in(simulated(tmp_path, request.param, weather), call)
