"""The nodes of a simulation, with their disks, a source and a folder that all see, and the processes that use them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from dlio.errors import DlioError
from dlio.io import world
from tools.simulate.chance import Chance
from tools.simulate.clock import Clock
from tools.simulate.data_set import DataSet
from tools.simulate.disk import Disk
from tools.simulate.launching import Launcher
from tools.simulate.network import Network, Weather
from tools.simulate.oracle import Oracle
from tools.simulate.orders import Orders
from tools.simulate.process import Process
from tools.simulate.scheduler import MS, S, Scheduler
from tools.simulate.source import Source
from tools.simulate.storage import Storage
from tools.simulate.watching import Watching
from tools.simulate.world import Machine, SimulatedWorld

SOURCE, MEET = "source", "meet"
_PAUSES = (1 * MS, 100 * MS, 1 * S, 3 * S)  # until a process that has ended starts again


@dataclass(frozen=True, slots=True)
class Size:
    """How much there is of everything.

    Attributes:
        nodes: of the job.
        files: sizes in bytes.
        locals: processes on each node that are started by the launcher.
    """

    nodes: int
    files: tuple[int, ...]
    locals: int = 1


class Cluster:
    """A simulated cluster.

    Args:
        scheduler: of the schedule.
        base: an empty folder, for the folders of all disks.
        size: how much there is.
        weather: of the network.
        keeps_track: whether disks know what is durable: power can be lost, or a sync fails.
    """

    def __init__(
        self, scheduler: Scheduler, base: Path, size: Size, weather: Weather, *, keeps_track: bool = False
    ) -> None:
        self.scheduler, self.base, self.size = scheduler, base, size
        skew = Chance(scheduler.seed, "clocks")
        clocks = [Clock(scheduler, began=skew.between(1, 10**6) * S) for _ in range(size.nodes)]
        self.storage = Storage(scheduler, base)
        for name in (SOURCE, MEET):
            self.storage.add(name, Clock(scheduler))
        self.disks: list[Disk] = []
        for node, clock in enumerate(clocks):
            for inner in ("tmp", "ssd", "home"):
                (base / f"node{node}" / inner).mkdir(parents=True)
            self.disks.append(self.storage.add(f"node{node}", clock, keeps_track=keeps_track))
        self.network = Network(scheduler, Chance(scheduler.seed, "network"), weather, size.nodes)
        machines = [Machine(node, clock) for node, clock in enumerate(clocks)]
        self.world = SimulatedWorld(scheduler, self.network, self.storage, machines)
        self.data = DataSet(base / SOURCE, list(size.files))
        self.orders = Orders(scheduler.seed, self.data.manifest, size.nodes * size.locals)
        self.source = Source(scheduler, self.data, self.storage.disks[SOURCE])
        self.oracle = Oracle(scheduler, self.data.contents, self.source, size.nodes)
        tmp = lambda node: base / f"node{node}" / "tmp"  # noqa: E731
        self.launcher = Launcher(self.world, tmp, self.oracle.causes.comes)
        self.watching = Watching(scheduler, self.oracle)
        self.gone: set[int] = set()  #: nodes that never start, or never start again
        self.storage.listeners += [self.source.note, self.oracle.called]

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Runs the engine in this cluster until the block ends."""
        with world.installed(self.world), self.launcher.in_charge(), self.watching.at_work():
            yield

    def dest(self, node: int) -> Path:
        """Returns where a node keeps copies."""
        return self.base / f"node{node}" / "ssd"

    def environ(self, node: int, local: int, step: int = 0) -> dict[str, str]:
        """Returns the variables that SLURM gives to a process of a job step."""
        nodes, locals_ = self.size.nodes, self.size.locals
        return {
            "DLIO_MEET": str(self.base / MEET),
            "HOME": str(self.base / f"node{node}" / "home"),
            "SLURM_JOB_ID": "7",
            "SLURM_LOCALID": str(local),
            "SLURM_NNODES": str(nodes),
            "SLURM_NODEID": str(node),
            "SLURM_NTASKS": str(nodes * locals_),
            "SLURM_PROCID": str(node * locals_ + local),
            "SLURM_STEP_ID": str(step),
            "SLURM_STEP_NUM_NODES": str(nodes),
            "SLURM_STEP_NUM_TASKS": str(nodes * locals_),
            "SLURM_STEP_TASKS_PER_NODE": f"{locals_}(x{nodes})" if nodes > 1 else str(locals_),
        }

    @property
    def flips(self) -> int:
        """How many reads of all disks had a wrong bit."""
        return sum(disk.flips for disk in self.storage.disks.values())

    def living(self) -> list[Process]:
        """Returns the processes that run."""
        return [process for process in self.scheduler.processes if not process.is_dead]

    def may_lack(self, node: int) -> bool:
        """Excludes a node permanently, unless it is the last; returns whether it does."""
        if len(self.gone | {node}) == self.size.nodes:
            return False
        self.gone.add(node)
        return True

    def lose_power(self, node: int) -> None:
        """Cuts a node's power: its processes end without a message, and its disk keeps what is durable."""
        self.scheduler.note("power", node)
        self.network.darken(node)
        for process in self.living():
            if process.node == node:
                process.kill()
        self.disks[node].lose_power()
        self.oracle.check_copies(self.disks[node])
        self.world.machines[node].boots += 1


@dataclass(eq=False)
class Actor:
    """A process that a launcher starts, and starts again when it was killed or has failed.

    Attributes:
        cluster: it lives in.
        node, local: its place.
        name: of its kind.
        work: what it does.
        came: ns when it starts first.
        step: of the job; a job may do the same in two steps at a time.
        lives: how often it was started.
        failures: what it failed with.
        done_at: ns when it had done its work; -1 before.
        process: its latest.
    """

    cluster: Cluster
    node: int
    local: int
    name: str
    work: Callable[[Actor], None]
    came: int = 0
    step: int = 0
    lives: int = 0
    failures: list[str] = field(default_factory=list)
    done_at: int = -1
    process: Process | None = None

    def __str__(self) -> str:
        return f"{self.name} {self.local} of node {self.node}{' again' * self.step}"

    @property
    def is_done(self) -> bool:
        """Whether it has done its work."""
        return self.done_at >= 0

    @property
    def is_over(self) -> bool:
        """Whether it has done its work, or can do it no more."""
        return self.is_done or self.node in self.cluster.gone

    def begin(self) -> None:
        """Starts it when it comes."""
        self.cluster.scheduler.call_at(self.came, self.start)

    def start(self) -> None:
        """Starts its process, unless its node has no power."""
        if self.is_over:
            return
        scheduler = self.cluster.scheduler
        if self.cluster.network.is_dark(self.node):
            scheduler.call_at(scheduler.now + 100 * MS, self.start)
            return
        self.lives += 1
        self.cluster.oracle.causes.comes(self.node)
        self.process = process = self.cluster.world.process(self.node)
        process.environ = self.cluster.environ(self.node, self.local, self.step)
        process.at_death.append(self._again)
        scheduler.spawn(process, self._live, self.name)

    def _again(self) -> None:
        if not self.is_done:
            pause = Chance(self.cluster.scheduler.seed, f"{self} {self.lives}").pick(_PAUSES)
            self.cluster.scheduler.call_at(self.cluster.scheduler.now + pause, self.start)

    def _live(self) -> None:
        process = self.process
        assert process
        try:
            self.work(self)
            self.done_at = self.cluster.scheduler.now
        except DlioError as error:
            self.failures.append(f"{type(error).__name__}: {error.text}")
            self.cluster.scheduler.note("fails", type(error).__name__)
            self.cluster.oracle.failed(f"{self}: {self.failures[-1]}", self.node)
        process.kill()
