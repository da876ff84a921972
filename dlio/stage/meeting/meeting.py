"""How the nodes of a job that exchange files find each other, and which of them are present.

Where a node tells the others of itself is a place: a folder that all nodes see (folder.py), or the connections
between nodes that MPI has introduced to each other (introduced.py). A node that comes later, or again, is found at the
next look. No node waits for another here. Only what is needed is looked at, so that ten thousand nodes do not read ten
thousand records each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from ipaddress import IPv4Address
from typing import Any, Protocol

from dlio.cluster import liveness
from dlio.cluster.topology import Topology
from dlio.io import world
from dlio.locking.owner import Owner
from dlio.stage.protocol.tcp import TcpListener

JOIN_SECONDS = 5.0  # after which a node that has not come is taken for lost, until it comes
LATE_SECONDS = 60.0  # so long its part is left to it where nobody waits: a thousand nodes start in that time
MOST_TEXT, _HEAD = 200, 60  # characters of what failed, and of its beginning if it is longer
_FRESH_SECONDS = 1.0  # a record is looked at again after so long
_SOON_SECONDS = 0.1  # between two looks for a node that has not come yet, or that alone is awaited


def shortened(problem: str) -> str:
    """Returns what failed in at most 200 characters, without its middle: paths are long, and the reason comes last."""
    if len(problem) <= MOST_TEXT:
        return problem
    return f"{problem[:_HEAD]}...{problem[_HEAD + 3 - MOST_TEXT :]}"


@dataclass(frozen=True, slots=True)
class Peer:
    """What a node tells the others of itself.

    Attributes:
        node: its rank.
        address: where it listens.
        owner: its process.
        is_complete: whether it has all that it keeps.
        staged: the bytes that it has.
        total: the bytes that it keeps in the end.
        rate: bytes a second since it began.
        waiting_for: what failed last; "" if nothing.
        had: the bytes that it had when it began.
        has_left: it has ended, and will not come back by itself.
    """

    node: int
    address: world.Address
    owner: Owner
    is_complete: bool
    staged: int
    total: int
    rate: int = 0
    waiting_for: str = ""
    had: int = 0
    has_left: bool = False

    @property
    def shown(self) -> dict[str, Any]:
        """Its figures, for `Client.stat`."""
        return {
            "node": self.node,
            "host": self.owner.host,
            "staged_bytes": self.staged,
            "total_bytes": self.total,
            "bytes_per_second": self.rate,
            "is_complete": self.is_complete,
            "waiting_for": self.waiting_for,
        }

    def to_json(self) -> dict[str, Any]:
        """Returns the record as a dictionary of plain values."""
        return asdict(self)

    @classmethod
    def from_json(cls, node: int, record: Any) -> Peer:
        """Returns the record of a node; raises ValueError, KeyError or TypeError if it is none."""
        host, port = record["address"]
        address = (str(IPv4Address(host)) if host else "", _number(port, 1 << 16))
        staged, total, rate, had = (_number(record[name]) for name in ("staged", "total", "rate", "had"))
        return cls(
            node, address, Owner.from_json(record["owner"]), bool(record["is_complete"]), staged, total, rate,
            shortened(str(record["waiting_for"])), had, bool(record["has_left"]),
        )  # fmt: skip

    @property
    def lacked(self) -> int:
        """The bytes that it lacked at first."""
        return self.total - self.had

    @property
    def lacks(self) -> int:
        """The bytes that it has still to write."""
        return max(0, self.total - self.staged)


def _number(value: Any, end: int = 1 << 63) -> int:
    if type(value) is int and 0 <= value < end:
        return value
    raise ValueError(f"expected a number from 0 to {end - 1}")


def numbered(topology: Topology, machines: Sequence[str]) -> Topology:
    """Returns a topology whose nodes are numbered as the machines of its processes, by rank, first appear.

    Args:
        topology: of this process.
        machines: the name of each process's machine; "" of one that does not count.
    """
    mine, names = machines[topology.rank], list(dict.fromkeys(name for name in machines if name))
    local = [rank for rank, name in enumerate(machines) if name == mine]
    return replace(
        topology, local_rank=local.index(topology.rank), local_world_size=len(local), node_rank=names.index(mine),
        num_nodes=len(names),
    )  # fmt: skip


class Place(Protocol):
    """Where a node tells the others of itself, and learns of them; for one thread at a time."""

    token: bytes  #: of the job
    is_joined_by_others: bool  #: whether another process may meet the nodes here in this one's stead

    def listener(self, content: str) -> TcpListener:
        """Returns where this node listens to others that mean the same data set; raises StorageError."""

    def tell(self, peer: Peer) -> None:
        """Replaces what this node has told; raises StorageError."""

    def look(self, node: int) -> tuple[Peer, object] | None:
        """Returns what a node has told, and a sign that changes while it lives; None if there is nothing."""

    def nodes(self) -> Sequence[int]:
        """Returns the nodes that may have told something, by their ranks."""

    def heard(self, node: int) -> None:
        """Learns from a node that it has all that it keeps."""

    def has_gone(self, node: int) -> bool:
        """Returns whether a node is surely not there, as far as the last look has shown."""

    def leave(self, last: Peer | None) -> None:
        """Ends this node's part, with a last word or with none; nothing else may be called afterwards."""


class Meeting:
    """This node's part; for any number of threads.

    Args:
        place: where the nodes meet.
        node: this node's rank.
        num_nodes: of the job.
    """

    def __init__(self, place: Place, node: int, num_nodes: int) -> None:
        self.node, self.num_nodes, self._place = node, num_nodes, place
        self.token, self.is_joined_by_others = place.token, place.is_joined_by_others
        self._began = world.monotonic()
        self._lock = world.lock()
        self._heartbeats = liveness.Heartbeats()
        self._seen: dict[int, tuple[float, Peer | None]] = {}
        self._last: dict[int, Peer] = {}
        self._down: dict[int, float] = {}
        self._done: set[int] = set()
        self._has_left = False

    def listener(self, content: str) -> TcpListener:
        """Returns where this node listens to the others; raises StorageError."""
        return self._place.listener(content)

    def tell(self, peer: Peer) -> None:
        """Tells the others of this node; raises StorageError."""
        self._place.tell(peer)

    def word(self, lacks: int = 0, why: str = "") -> Peer:
        """Returns the last word of a node at which nobody listens: the bytes that it lacks, and why."""
        return Peer(self.node, ("", 0), Owner.current(), not lacks, 0, lacks, waiting_for=shortened(why))

    def leave(self, last: Peer | None = None) -> None:
        """Ends this node's part, once; nothing else may be called afterwards."""
        if not self._has_left:
            self._has_left = True
            self._place.leave(last)

    def heard(self, node: int) -> None:
        """Learns from a node that it has all that it keeps."""
        self._place.heard(node)

    def peer(self, node: int, fresh: float = _FRESH_SECONDS) -> Peer | None:
        """Returns a node that is present; None if it has not come, has left, or is silent."""
        with self._lock:
            now = world.monotonic()
            looked, found = self._seen.get(node, (0.0, None))
            is_expected = found is None and self.is_gathering
            if not looked or now - looked > (_SOON_SECONDS if is_expected else fresh):
                found = self._look(node)
                self._seen[node] = (now, found)
            return found

    def _look(self, node: int) -> Peer | None:
        found = self._place.look(node)
        if found is None:
            return None
        peer, sign = found
        silent = self._heartbeats.note((node, peer.owner), sign)
        is_dead = silent > liveness.LOST_SECONDS or peer.owner.is_alive() is False
        if peer.has_left or peer.is_complete or not is_dead:
            self._last[node] = peer
        return None if is_dead or peer.has_left else peer

    def all_peers(self) -> list[Peer]:
        """Returns all other nodes that are present, for a report."""
        others = (self.peer(node) for node in self._place.nodes() if node != self.node)
        return [peer for peer in others if peer]

    def known(self) -> list[Peer]:
        """Returns the latest word of each other node that was ever there, by their ranks."""
        self.all_peers()
        with self._lock:
            return [self._last[node] for node in sorted(self._last)]

    def avoid(self, node: int, seconds: float) -> None:
        """Takes a node for lost for a while."""
        with self._lock:
            self._down[node] = world.monotonic() + seconds

    def expects(self, node: int) -> bool:
        """Returns whether a node has never been here, and may be starting still."""
        is_new = self.peer(node) is None and node not in self._last and not self._place.has_gone(node)
        return is_new and world.monotonic() - self._began < LATE_SECONDS

    @property
    def is_gathering(self) -> bool:
        """Whether nodes that have not come are still expected."""
        return world.monotonic() - self._began < JOIN_SECONDS

    def __contains__(self, node: object) -> bool:
        """Returns whether a node is lost: `owner_now` asks."""
        if node == self.node or not isinstance(node, int):
            return False
        if self._down.get(node, 0.0) > world.monotonic():
            return True
        return self.peer(node) is None and (not self.is_gathering or self._place.has_gone(node))

    def awaits_any(self, is_stuck: Callable[[Peer], bool]) -> bool:
        """Returns whether another node is present, or expected, that is neither complete nor stuck."""
        return any(self._awaits(node, is_stuck) for node in range(self.num_nodes) if node not in self._done)

    def _awaits(self, node: int, is_stuck: Callable[[Peer], bool]) -> bool:
        if node != self.node:
            peer = self.peer(node, _SOON_SECONDS)
            if self.expects(node) or (peer and not peer.is_complete and not is_stuck(peer)):
                return True
            if peer and not peer.is_complete:
                return False  # it may go on
        self._done.add(node)
        return False

    def absent(self) -> list[int]:
        """Returns the nodes that never came."""
        others = [node for node in range(self.num_nodes) if node != self.node and node not in self._last]
        return [node for node in others if not self._place.has_gone(node)]

    def lost(self) -> Iterator[Peer]:
        """Yields the last record of each node that came, and then fell silent or left before its copy was complete."""
        for peer in self.known():
            is_here = peer.is_complete or self.peer(peer.node) is not None
            if not is_here and (peer.has_left or not self._place.has_gone(peer.node)):  # else its launcher says why
                yield peer
