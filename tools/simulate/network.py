"""The network of a simulation: which sockets listen, which paths are cut or slow, and random faults."""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from typing import Any

from tools.simulate.chance import Chance
from tools.simulate.flows import Flows
from tools.simulate.pipe import RESET, Path, Pipe
from tools.simulate.process import Process
from tools.simulate.scheduler import MS, US, S, Scheduler
from tools.simulate.sockets import SimSocket, failure

_FIRST_PORT = 40_000
_RESEND = 1 * S  # until a lost attempt to connect is made again, twice as long each time
_LOCAL = 20 * US


WINDOW = 1 << 18  #: bytes


@dataclass(slots=True)
class Weather:
    """How a network behaves; probabilities are for each call or attempt.

    Attributes:
        latency: ns, the least and the most, between two nodes.
        window: bytes of a connection that are sent and not yet read.
        bandwidth: bytes a second of each node in each direction; 0 for no limit.
        pieces: probability that bytes come in several parts.
        part: that a call that waits for all bytes returns some of them, as a signal has it do.
        reset: that a connection is broken off, when one of its ends sends or receives.
        refused: that an attempt to connect is refused though somebody listens.
        lost: that an attempt to connect gets lost, and is made again a second later.
    """

    latency: tuple[int, int] = (50 * US, 200 * US)
    window: int = WINDOW
    bandwidth: int = 0
    pieces: float = 0.0
    part: float = 0.0
    reset: float = 0.0
    refused: float = 0.0
    lost: float = 0.0


class Network:
    """Connects the nodes of a schedule.

    Args:
        scheduler: of the schedule.
        chance: decides what goes wrong.
        weather: how the network behaves; may be changed on the way.
        num_nodes: of the schedule.
    """

    def __init__(self, scheduler: Scheduler, chance: Chance, weather: Weather, num_nodes: int) -> None:
        self.scheduler, self.chance, self.weather = scheduler, chance, weather
        self.flows = Flows(scheduler, lambda _: self.weather.bandwidth, num_nodes)
        self.slow: dict[tuple[int, int], int] = {}  #: ns that what goes from one node to another takes longer
        self._cut: set[tuple[int, int]] = set()
        self._held: dict[Pipe, None] = {}
        self._listening: dict[tuple[str, int], SimSocket] = {}
        self._names: dict[tuple[int, int], SimSocket] = {}  # of Unix sockets, by device and inode
        self._open: dict[Process, dict[SimSocket, None]] = {}
        self._dark: dict[int, None] = {}
        self._ports: dict[int, int] = {}
        self.resets = 0

    @staticmethod
    def address_of(node: int) -> str:
        """Returns the address of a node."""
        return f"10.{node >> 16}.{node >> 8 & 255}.{node & 255}"

    # Where things go wrong.

    def cut(self, source: int, target: int) -> None:
        """Lets nothing through from one node to another until `heal`."""
        self._cut.add((source, target))
        self.scheduler.note("cut", source, target)

    def heal(self, source: int, target: int) -> None:
        """Delivers again what was held back."""
        self._cut.discard((source, target))
        self.scheduler.note("heal", source, target)
        self._go_on()

    def darken(self, node: int) -> None:
        """Cuts a node's power: what it had sent and was not received yet is lost, and it does not answer."""
        self._dark[node] = None
        for process in [each for each in self._open if each.node == node]:
            for each in self._open.pop(process):
                if each.out is not None:
                    each.out.drop()
                self._forget(each)
                each.is_closed = True

    def is_dark(self, node: int) -> bool:
        """Returns whether a node has no power."""
        return node in self._dark

    def lighten(self, node: int) -> None:
        """Restores a node's power: it answers, but knows no earlier connection."""
        self._dark.pop(node, None)
        self._go_on()

    def _go_on(self) -> None:
        for pipe in list(self._held):
            if not self.is_cut(pipe.path):
                del self._held[pipe]
                pipe.release()

    def is_cut(self, path: Path) -> bool:
        """Returns whether nothing gets through."""
        if not (self._cut or self._dark):
            return False
        return (path.source, path.target) in self._cut or path.source in self._dark or path.target in self._dark

    def hold(self, pipe: Pipe) -> None:
        """Keeps what does not get through until it can."""
        self._held[pipe] = None

    def latency(self, path: Path) -> int:
        """Returns the ns that what leaves now takes."""
        if path.is_local or path.source is None or path.target is None:
            return _LOCAL
        more = self.slow.get((path.source, path.target), 0) if self.slow else 0
        return self.chance.between(*self.weather.latency) + more

    def pieces(self, item: bytes | str) -> tuple[bytes | str, ...]:
        """Returns the parts in which something comes."""
        if (
            isinstance(item, bytes)
            and self.weather.pieces
            and len(item) > 1
            and self.chance.happens(self.weather.pieces)
        ):
            at = self.chance.between(1, len(item) - 1)
            return item[:at], item[at:]
        return (item,)

    def may_reset(self, peer: SimSocket) -> None:
        """Breaks a connection off now and then: at both ends, or only at this one at first."""
        other = peer.out and peer.out.target
        if other and peer.process.node != other.process.node and self.chance.happens(self.weather.reset):
            self.resets += 1
            self.scheduler.note("reset", peer.getsockname(), peer.getpeername())
            assert peer.out
            peer.out.send(RESET)
            peer.break_off(errno.ECONNRESET)

    # Who is present.

    def opened(self, peer: SimSocket) -> None:
        """Notes a socket of a process, which the system closes with it."""
        if peer.process not in self._open:
            self._open[peer.process] = {}
            peer.process.at_death.append(lambda: self._ended(peer.process))
        self._open[peer.process][peer] = None

    def closed(self, peer: SimSocket) -> None:
        """Forgets a socket."""
        self._open.get(peer.process, {}).pop(peer, None)
        self._forget(peer)

    def _forget(self, peer: SimSocket) -> None:
        if peer.backlog:
            self._listening = {name: each for name, each in self._listening.items() if each is not peer}
            self._names = {inode: each for inode, each in self._names.items() if each is not peer}

    def _ended(self, process: Process) -> None:
        for peer in self.chance.shuffled(list(self._open.pop(process, {}))):
            peer.abandon()

    def count(self, process: Process) -> int:
        """Returns how many sockets a process has open."""
        return len(self._open.get(process, {}))

    def _port(self, node: int) -> int:
        self._ports[node] = port = self._ports.get(node, _FIRST_PORT) + 1
        return port

    def listen(self, process: Process, backlog: int) -> SimSocket:
        """Returns a TCP socket that listens at its node's address."""
        name = (self.address_of(process.node), self._port(process.node))
        self._listening[name] = peer = SimSocket(self, process, name)
        peer.backlog = backlog + 1
        return peer

    def bound(self, peer: SimSocket, status: os.stat_result) -> None:
        """Notes a name of a Unix socket."""
        self._names[status.st_dev, status.st_ino] = peer

    def connect(self, process: Process, address: Any, seconds: float) -> SimSocket:
        """Returns a TCP connection; raises OSError."""
        scheduler, deadline = self.scheduler, process.clock.ns(seconds)
        if scheduler.eagerness:
            scheduler.pass_by()
        host, port = address
        target, again = _node_of(host), _RESEND
        end = scheduler.now + (deadline or 10**6 * S)
        there, back = Path(process.node, target), Path(target, process.node)
        while True:
            trip = self.latency(there) + self.latency(back)
            if self.is_cut(there) or self.is_cut(back) or self.chance.happens(self.weather.lost):
                trip = again
                again *= 2
            elif self.chance.happens(self.weather.refused):
                scheduler.pause(trip)
                raise ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
            elif scheduler.now + trip <= end:
                scheduler.pause(trip)
                if found := self._joined(process, (host, port), there, back):
                    found.settimeout(seconds)
                    return found
                trip = again
            if scheduler.now + trip > end:
                scheduler.pause(end - scheduler.now)
                raise TimeoutError("timed out")
            scheduler.pause(trip)

    def _joined(self, process: Process, address: tuple[str, int], there: Path, back: Path) -> SimSocket | None:
        """Returns a connection; None if nothing has answered. Raises ConnectionRefusedError."""
        listener = self._listening.get(address)
        if self.is_cut(there) or self.is_cut(back):
            return None
        if listener is None or not listener.is_listening:
            raise ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
        if len(listener.waiting) >= listener.backlog:
            return None
        peer = SimSocket(self, process, (self.address_of(process.node), self._port(process.node)), None, address)
        self._pair(peer, listener, there, back)
        return peer

    def _pair(self, peer: SimSocket, listener: SimSocket, there: Path, back: Path) -> None:
        """Connects a socket with a new one that waits to be accepted."""
        other = SimSocket(self, listener.process, listener.getsockname(), None, peer.getsockname())
        out, into = Pipe(self, there), Pipe(self, back)
        peer.link(out, into)
        other.link(into, out)
        listener.waiting.append(other)
        listener.wake_readers()
        self.scheduler.note("connect", there.source, there.target)

    def connect_unix(self, peer: SimSocket, path: Any) -> None:
        """Connects a socket with the one that bears a name; raises OSError."""
        status = os.stat(path)  # noqa: PTH116  a path below a descriptor
        listener = self._names.get((status.st_dev, status.st_ino))
        if listener is None or not listener.is_listening:
            raise ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
        if len(listener.waiting) >= listener.backlog:
            raise failure(errno.EAGAIN)
        here = Path(peer.process.node, peer.process.node)
        self._pair(peer, listener, here, here)


def _node_of(host: str) -> int:
    first, *rest = (int(part) for part in host.split("."))
    return (rest[0] << 16) + (rest[1] << 8) + rest[2] if first == 10 else -1


LATENCIES = ((20 * US, 60 * US), (50 * US, 200 * US), (200 * US, 5 * MS), (1 * MS, 50 * MS))  #: for a seed to pick from
