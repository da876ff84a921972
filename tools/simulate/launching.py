"""A process's environment, and how it starts others, where the engine uses neither `dlio.io.world` nor arguments.

os.environ              the variables of the process that looks
launch._begun           starts an agent: a process of the simulation, on the same node
__main__._log_to        an agent's log is its node's, in the trace
__main__._exit          ends the process
locations.own_dest      /tmp is the node's own
filesystems.mount_of    all disks are local ones; the free memory of this machine has no effect
"""

from __future__ import annotations

import importlib
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dlio.errors import DlioError
from dlio.io import filesystems
from dlio.stage.client import launch
from dlio.stage.client.start import Task
from dlio.stage.copies import locations
from dlio.stage.copies.locations import own_dest
from tools.simulate.chance import Chance
from tools.simulate.primitives import Waiting
from tools.simulate.process import Process
from tools.simulate.replaced import replaced
from tools.simulate.scheduler import MS
from tools.simulate.world import SimulatedWorld

agents = importlib.import_module("dlio.stage.engine.__main__")

_START = (20 * MS, 100 * MS, 400 * MS)  # until the process of an agent runs; so some start at the same time


class Environ(Mapping[str, str]):
    """The variables of the process that reads them."""

    def __init__(self, world: SimulatedWorld) -> None:
        self._world = world

    def _of_process(self) -> Mapping[str, str]:
        task = self._world.scheduler.current
        return task.process.environ if task else {}

    def __getitem__(self, name: str) -> str:
        return self._of_process()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._of_process())

    def __len__(self) -> int:
        return len(self._of_process())


class Launcher:
    """Starts agents.

    Args:
        world: they live in.
        tmp: returns a node's /tmp.
        comes: called with the node of each agent that starts.

    Attributes:
        started: the processes of all agents.
    """

    def __init__(
        self, world: SimulatedWorld, tmp: Callable[[int], Path], comes: Callable[[int], object] = lambda node: None
    ) -> None:
        self._world, self._tmp, self._comes = world, tmp, comes
        self._chance = Chance(world.scheduler.seed, "launching")
        self.started: list[Process] = []

    @contextmanager
    def in_charge(self) -> Iterator[None]:
        """Starts agents here until the block ends."""
        with (
            replaced(os, environ=Environ(self._world)),
            replaced(launch, _begun=self._begun),
            replaced(agents, _log_to=lambda path: None, _exit=self._exit),
            replaced(locations, own_dest=self._place),
            replaced(filesystems, mount_of=lambda *_: ("ext4", "/")),
        ):
            yield

    def _place(self, dest: Path, user: int | None = None) -> Path:
        task = self._world.scheduler.current
        if dest == locations.LISTED_AT and task:
            dest = self._tmp(task.process.node)
        return own_dest(dest, user)

    def _exit(self, code: int) -> None:
        task = self._world.scheduler.current
        assert task
        task.process.kill()

    def _begun(self, text: str) -> tuple[str, str]:
        """Starts an agent; returns its answer, "" if it ended without one, and its last words."""
        scheduler, said = self._world.scheduler, list[str]()
        parent, answered = scheduler.current, Waiting(scheduler)
        assert parent

        def say(line: str) -> None:
            scheduler.check()
            if not said:
                said.append(line)
                answered.wake_all()

        process = self._world.process(parent.process.node)
        process.environ = dict(parent.process.environ)
        process.at_death.append(answered.wake_all)
        self.started.append(process)
        scheduler.spawn(process, lambda: self._work(text, say, process), "agent")
        while not (said or process.is_dead):
            answered.wait()
        return (said[0] if said else ""), ""

    def _work(self, text: str, say: Callable[[str], None], process: Process) -> None:
        self._world.scheduler.pause(self._chance.pick(_START))
        self._comes(process.node)
        try:
            agents.work(Task.from_json(text), say)
        except DlioError as error:
            self._world.scheduler.note("agent failed", type(error).__name__)
            say(launch.told(error))
        process.kill()


class TraceLog(logging.Handler):
    """Puts what is logged into the trace, without the folders' names, which differ from run to run."""

    def __init__(self, world: SimulatedWorld, base: Path) -> None:
        super().__init__(logging.WARNING)
        self._world, self._base = world, f"{base}/"

    def emit(self, record: logging.LogRecord) -> None:
        """Adds a line."""
        trace: Any = self._world.scheduler.trace
        if trace is not None:
            trace.append(f"{self._world.scheduler.now} log {record.getMessage().replace(self._base, '')}")
