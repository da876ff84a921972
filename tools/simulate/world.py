"""The world of a simulation, instead of the system: `dlio.io.world` leads here."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tools.simulate.chance import Chance
from tools.simulate.clock import Clock
from tools.simulate.network import Network
from tools.simulate.primitives import SimCondition, SimEvent, SimLock, SimSemaphore, SimThread
from tools.simulate.process import Process
from tools.simulate.scheduler import Scheduler
from tools.simulate.selector import SimSelector
from tools.simulate.sockets import SimSocket
from tools.simulate.storage import Storage

_FIRST_PID = 1_000
_TICK = 10_000_000  # ns


@dataclass(eq=False)
class Machine:
    """One node of a simulation.

    Attributes:
        number: of the node.
        clock: its clocks.
        boots: how often its system has started.
        processes: that were ever started there, the latest last.
    """

    number: int
    clock: Clock
    boots: int = 1
    processes: list[Process] = field(default_factory=list)

    def living(self, pid: int) -> Process | None:
        """Returns the process of this id; None if there is none."""
        return next((each for each in self.processes if each.pid == pid and not each.is_dead), None)


class SimulatedWorld:
    """What `dlio.io.world` becomes, for whichever task runs; no call of a dead process's returns.

    Args:
        scheduler: of the schedule.
        network: connects the machines.
        storage: the disks.
        machines: the nodes.

    Attributes:
        scheduler, network, storage, machines: as the arguments.
        reuse: probability that a process gets the id of one that is dead.
    """

    def __init__(self, scheduler: Scheduler, network: Network, storage: Storage, machines: Sequence[Machine]) -> None:
        self.scheduler, self.network, self.storage, self.machines = scheduler, network, storage, machines
        self._chance = Chance(scheduler.seed, "secrets")
        self.open, self.replace, self.names, self.touch = storage.open, storage.replace, storage.names, storage.touch
        self.pread, self.preadv, self.pwrite, self.fsync = storage.pread, storage.preadv, storage.pwrite, storage.fsync
        self.changed = storage.changed
        self._lives, self.reuse = 0, 0.0

    def process(self, node: int) -> Process:
        """Returns a new process of a node."""
        machine = self.machines[node]
        pid = self._pid_of_the_dead(machine) or _FIRST_PID + len(machine.processes)
        boot = f"{node:08x}-0000-4000-8000-{machine.boots:012x}"
        self._lives += 1
        process = self.scheduler.process(node, pid, boot, f"node{node}", self._lives)
        process.clock = machine.clock
        machine.processes.append(process)
        return process

    def _pid_of_the_dead(self, machine: Machine) -> int | None:
        """Returns the id of a process of a machine that has ended, if it is used again."""
        now = self.scheduler.now // _TICK
        latest = {each.pid: each.began // _TICK for each in machine.processes}
        dead = [pid for pid, began in latest.items() if not machine.living(pid) and began < now]
        return dead[-1] if dead and self._chance.happens(self.reuse) else None

    def _process(self) -> Process:
        self.scheduler.check()
        task = self.scheduler.current
        assert task, "only tasks live in a simulated world"
        return task.process

    def _clock(self) -> Clock:
        return self._process().clock

    def monotonic(self) -> float:
        """Returns this node's seconds; see `dlio.io.world`, as for all of these."""
        task = self.scheduler.current
        assert task, "only tasks live in a simulated world"
        return task.process.clock.monotonic()

    def wall(self) -> float:
        """Returns this node's time of day."""
        return self._clock().wall_ns() / 1e9

    def sleep(self, seconds: float) -> None:
        """Sleeps for this many seconds."""
        ns = self._clock().ns(seconds)
        if ns is None:
            self.scheduler.park()
        else:
            self.scheduler.pause(ns)

    def start(self, call: Callable[[], object], name: str) -> SimThread:
        """Returns a new thread of the present process."""
        process = self._process()
        task = self.scheduler.spawn(process, call, name)
        if self.scheduler.eagerness:
            self.scheduler.pass_by()
        return SimThread(self.scheduler, process.clock, task)

    def lock(self) -> SimLock:
        """Returns a lock."""
        return SimLock(self.scheduler, self._clock())

    def condition(self) -> SimCondition:
        """Returns a condition."""
        return SimCondition(self.scheduler, self._clock())

    def event(self) -> SimEvent:
        """Returns an event."""
        return SimEvent(self.scheduler, self._clock())

    def semaphore(self, value: int = 1) -> SimSemaphore:
        """Returns a semaphore that so many may hold at a time."""
        return SimSemaphore(self.scheduler, self._clock(), value)

    def random_bytes(self, count: int) -> bytes:
        """Returns drawn bytes."""
        self.scheduler.check()
        return self._chance.bytes(count)

    def pid(self) -> int:
        """Returns the present process's id."""
        return self._process().pid

    def boot_id(self) -> str:
        """Returns the boot id of the present node."""
        return self._process().boot

    def host(self) -> str:
        """Returns the present node's name."""
        return self._process().host

    def start_time(self, pid: int) -> int | None:
        """Returns when a process of this node started; None if it has ended."""
        found = self.machines[self._process().node].living(pid)
        return found.began // _TICK + 1 if found else None

    def address(self) -> str:
        """Returns the present node's address."""
        return self.network.address_of(self._process().node)

    def listen(self, host: str, backlog: int) -> SimSocket:
        """Returns a socket that listens."""
        return self.network.listen(self._process(), backlog)

    def connect(self, address: Any, seconds: float) -> SimSocket:
        """Returns a connection."""
        return self.network.connect(self._process(), address, seconds)

    def unix_socket(self) -> SimSocket:
        """Returns a Unix socket."""
        return SimSocket(self.network, self._process(), "")

    def user_of(self, peer: Any) -> int:
        """Returns this user, who owns all processes."""
        self.scheduler.check()
        return os.geteuid()

    def limit(self, peer: Any, seconds: float) -> None:
        """Ends each call on a connection after this many seconds."""
        peer.limit(seconds)

    def keep_alive(self, peer: Any) -> None:
        """Does nothing: a lost peer is silent for longer than anybody waits."""
        self.scheduler.check()

    def selector(self) -> Any:
        """Returns an empty selector."""
        return SimSelector(self.network, self._process())

    def send_file(self, peer: Any, descriptor: int, begin: int, count: int) -> int:
        """Sends as much of a file's range as there is room for."""
        data = self.storage.pread(descriptor, min(count, self.network.weather.window), begin)
        return int(peer.send(memoryview(data))) if data else 0
