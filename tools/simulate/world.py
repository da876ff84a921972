"""The world of a simulation, in the place of the system: `dlio.io.world` leads here."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from tools.simulate.chance import Chance
from tools.simulate.clock import Clock
from tools.simulate.network import Network
from tools.simulate.primitives import SimCondition, SimEvent, SimLock, SimThread
from tools.simulate.process import Process
from tools.simulate.scheduler import Scheduler
from tools.simulate.selector import SimSelector
from tools.simulate.sockets import SimSocket

_FIRST_PID = 1_000
_TICK = 10_000_000  # ns


class Disk(Protocol):
    """What a node does with files; each call may take time, or fail. As the methods of `World` with these names."""

    def open(self, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int: ...
    def pread(self, descriptor: int, count: int, offset: int) -> bytes: ...
    def preadv(self, descriptor: int, buffers: Sequence[Any], offset: int) -> int: ...
    def pwrite(self, descriptor: int, data: Any, offset: int) -> int: ...
    def fsync(self, descriptor: int) -> None: ...
    def replace(
        self, source: Any, target: Any, *, src_dir_fd: int | None = None, dst_dir_fd: int | None = None
    ) -> None: ...
    def touch(self, path: Any, *, dir_fd: int | None = None) -> None: ...
    def changed(self, status: os.stat_result) -> float: ...


@dataclass(eq=False)
class Machine:
    """One node of a simulation.

    Attributes:
        number: of the node.
        clock: its clocks.
        disk: what it does with files.
        boots: how often its system has started.
        processes: that were ever started there, the latest last.
    """

    number: int
    clock: Clock
    disk: Disk
    boots: int = 1
    processes: list[Process] = field(default_factory=list)

    def living(self, pid: int) -> Process | None:
        """Returns the process of this id; None if there is none."""
        return next((each for each in self.processes if each.pid == pid and not each.is_dead), None)


class SimulatedWorld:
    """A `World`, for whichever task runs; no call of a dead process's returns.

    Args:
        scheduler: of the schedule.
        network: connects the machines.
        machines: the nodes.
        chance: of the bytes that nobody can guess.
    """

    def __init__(self, scheduler: Scheduler, network: Network, machines: Sequence[Machine], chance: Chance) -> None:
        self.scheduler, self.network, self.machines, self._chance = scheduler, network, machines, chance
        self._lives = 0

    def process(self, node: int, pid: int | None = None) -> Process:
        """Returns a new process of a node, by default with an id that was never used there."""
        machine = self.machines[node]
        pid = _FIRST_PID + len(machine.processes) if pid is None else pid
        boot = f"{node:08x}-0000-4000-8000-{machine.boots:012x}"
        self._lives += 1
        process = self.scheduler.process(node, pid, boot, f"node{node}", self._lives)
        machine.processes.append(process)
        return process

    def _process(self) -> Process:
        self.scheduler.check()
        task = self.scheduler.current
        assert task, "only tasks live in a simulated world"
        return task.process

    def _machine(self) -> Machine:
        return self.machines[self._process().node]

    def monotonic(self) -> float:
        """Returns this node's seconds; see `dlio.io.world`, as for all of these."""
        return self._machine().clock.monotonic()

    def wall(self) -> float:
        """Returns this node's time of day."""
        return self._machine().clock.wall_ns() / 1e9

    def sleep(self, seconds: float) -> None:
        """Lets others run for so long."""
        ns = self._machine().clock.ns(seconds)
        if ns is None:
            self.scheduler.park()
        else:
            self.scheduler.pause(ns)

    def start(self, call: Callable[[], object], name: str) -> SimThread:
        """Returns a new thread of the present process."""
        process = self._process()
        task = self.scheduler.spawn(process, call, name)
        self.scheduler.pass_by()
        return SimThread(self.scheduler, self.machines[process.node].clock, task)

    def lock(self) -> SimLock:
        """Returns a lock."""
        return SimLock(self.scheduler, self._machine().clock)

    def condition(self) -> SimCondition:
        """Returns a condition."""
        return SimCondition(self.scheduler, self._machine().clock)

    def event(self) -> SimEvent:
        """Returns an event."""
        return SimEvent(self.scheduler, self._machine().clock)

    def random_bytes(self, count: int) -> bytes:
        """Returns drawn bytes."""
        self.scheduler.check()
        return self._chance.bytes(count)

    def pid(self) -> int:
        """Returns the present process's id."""
        return self._process().pid

    def boot_id(self) -> str:
        """Returns what the present node's system is known by until it starts anew."""
        return self._process().boot

    def host(self) -> str:
        """Returns the present node's name."""
        return self._process().host

    def start_time(self, pid: int) -> int | None:
        """Returns when a process of this node started; None if it is gone."""
        found = self._machine().living(pid)
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
        """Returns this user, whose all processes are."""
        self.scheduler.check()
        return os.geteuid()

    def limit(self, peer: Any, seconds: float) -> None:
        """Has each call on a connection end after so many seconds."""
        peer.limit(seconds)

    def keep_alive(self, peer: Any) -> None:
        """Does nothing: whose other end is gone without a word is silent for longer than anybody waits."""
        self.scheduler.check()

    def selector(self) -> SimSelector:
        """Returns an empty selector."""
        return SimSelector(self.network, self._process())

    def send_file(self, peer: Any, descriptor: int, begin: int, count: int) -> int:
        """Sends as much of a file's range as there is room for."""
        data = self._machine().disk.pread(descriptor, min(count, self.network.weather.window), begin)
        return int(peer.send(memoryview(data))) if data else 0

    def open(self, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        """Opens a file."""
        return self._machine().disk.open(path, flags, mode, dir_fd=dir_fd)

    def pread(self, descriptor: int, count: int, offset: int) -> bytes:
        """Reads."""
        return self._machine().disk.pread(descriptor, count, offset)

    def preadv(self, descriptor: int, buffers: Sequence[Any], offset: int) -> int:
        """Reads into buffers."""
        return self._machine().disk.preadv(descriptor, buffers, offset)

    def pwrite(self, descriptor: int, data: Any, offset: int) -> int:
        """Writes."""
        return self._machine().disk.pwrite(descriptor, data, offset)

    def fsync(self, descriptor: int) -> None:
        """Makes durable."""
        self._machine().disk.fsync(descriptor)

    def replace(
        self, source: Any, target: Any, *, src_dir_fd: int | None = None, dst_dir_fd: int | None = None
    ) -> None:
        """Renames."""
        self._machine().disk.replace(source, target, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)

    def touch(self, path: Any, *, dir_fd: int | None = None) -> None:
        """Stamps the time."""
        self._machine().disk.touch(path, dir_fd=dir_fd)

    def changed(self, status: os.stat_result) -> float:
        """Returns when a file was changed."""
        return self._machine().disk.changed(status)
