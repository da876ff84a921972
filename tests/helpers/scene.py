"""A source and a node with a copy, which the oracle of the simulator watches."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from dlio.stage.copies.base_folder import CACHE, CONTROL, LEASES
from tools.simulate.clock import Clock
from tools.simulate.data_set import DataSet
from tools.simulate.oracle import Oracle
from tools.simulate.process import Process
from tools.simulate.scheduler import Scheduler
from tools.simulate.source import Source
from tools.simulate.storage import Storage
from tools.simulate.watching import Watching


class Scene:
    """A source, and a node with a copy."""

    def __init__(self, base: Path) -> None:
        self.scheduler = Scheduler(0)
        self.storage = Storage(self.scheduler, base)
        shared = self.storage.add("source", Clock(self.scheduler))
        self.disk = self.storage.add("node0", Clock(self.scheduler))
        self.data = DataSet(shared.root, [50_000, 60_000])
        self.source = Source(self.scheduler, self.data, shared)
        self.oracle = Oracle(self.scheduler, self.data.contents, self.source, 3)
        self.watching = Watching(self.scheduler, self.oracle)
        self.storage.listeners += [self.source.note, self.oracle.called]
        for node in range(3):
            self.oracle.causes.comes(node)
        self.copy = self.disk.root / CACHE / "copy"
        (self.copy / CONTROL).mkdir(parents=True)
        (self.copy.parent / LEASES).mkdir()
        (self.copy.parent / LEASES / "copy@1").touch()

    def process(self, node: int = 0) -> Process:
        """Returns a new process."""
        return self.scheduler.process(node, 100, "boot", f"node{node}", len(self.scheduler.processes))

    def do(self, call: Callable[[], object], process: Process | None = None) -> None:
        """Runs a call as a task, by default of its own process."""
        task = self.scheduler.spawn(process or self.process(), call, "task")
        self.scheduler.run()
        if task.error:
            raise task.error

    def name(self, name: str, data: bytes) -> None:
        """Gives a file its final name."""
        (self.copy / CONTROL / name).write_bytes(data)
        self.do(lambda: self.storage.replace(self.copy / CONTROL / name, self.copy / name))

    @property
    def broken(self) -> list[str]:
        """The promises that were broken."""
        return [violation.promise for violation in self.oracle.violations]


def read_by(scene: Scene, node: int, at: int, process: Process | None = None) -> None:
    """Makes a node, by a new process if none is given, read a part of the first file at a time."""

    def work() -> None:
        scene.scheduler.pause(at - scene.scheduler.now)
        descriptor = scene.storage.open(scene.data.manifest.root / next(iter(scene.data.contents)), os.O_RDONLY)
        scene.storage.pread(descriptor, 40_000, 0)
        os.close(descriptor)

    scene.do(work, process or scene.process(node))
