"""What a node of a job tells of itself: to the other nodes, to its machine's loaders, and to `dlio stage --status`.

It is one record everywhere: in the folder where the nodes meet, in the answers to PEER and STAT (protocol/wire.py),
and what `--status` prints. That leaves out `_UNSHOWN`, and adds the time that is left. `Other` is what this node knows
of another one by it, and by how that answers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from ipaddress import IPv4Address
from typing import Any

from dlio.io import world
from dlio.locking.owner import Owner
from dlio.stage.protocol.connection import ConnectionPool, RefusedError
from dlio.stage.protocol.tcp import TcpListener

_UNSHOWN = ("address", "owner", "had_bytes", "has_left", "idle_seconds", "room", "keeps_all")
JOIN_SECONDS = 5.0  # after which a node that has not come is taken for lost, until it comes
LATE_SECONDS = 60.0  # so long its part is left to it where nobody waits: a thousand nodes start in that time
STUCK_SECONDS = 600.0  # without a block: nobody waits any longer for a node
MOST_TEXT, _HEAD = 200, 60  # characters of what failed, and of its beginning if it is longer
STREAMS = 12  # connections to one node at a time
_AGAIN_SECONDS = 0.1  # before a node that has refused a connection is asked once more: by then it has left a last word
_AVOID_SECONDS, _LONGEST_SECONDS = 5.0, 20.0  # of one that does not answer any more: at first, and at most
_HEARD_SECONDS = 0.05, 2.0  # between two searches for one that asks: not found yet, or did not answer
_NEVER = float("-inf")


def shortened(problem: str) -> str:
    """Returns what failed in at most 200 characters, without its middle: paths are long, and the reason comes last."""
    if len(problem) <= MOST_TEXT:
        return problem
    return f"{problem[:_HEAD]}...{problem[_HEAD + 3 - MOST_TEXT :]}"


@dataclass(frozen=True, slots=True)
class Peer:
    """What a node tells of itself.

    Attributes:
        node: its rank.
        address: where it listens.
        owner: its process.
        is_complete: whether it has all that it keeps, and has published its copy if that is whole.
        staged_bytes: that it has.
        total_bytes: that it keeps in the end.
        bytes_per_second: since it began.
        waiting_for: what failed last; "" if nothing.
        had_bytes: that it had when it began.
        has_left: it has ended, and will not come back by itself.
        idle_seconds: since its latest block.
        room: the bytes that its files may take; None if it has not told.
        keeps_all: whether it keeps its whole copy, which may be a part; else it needs others for that in each epoch.
    """

    node: int
    address: world.Address
    owner: Owner
    is_complete: bool
    staged_bytes: int
    total_bytes: int
    bytes_per_second: int = 0
    waiting_for: str = ""
    had_bytes: int = 0
    has_left: bool = False
    idle_seconds: int = 0
    room: int | None = None
    keeps_all: bool = True

    def to_json(self) -> dict[str, Any]:
        """Returns the record as a dictionary of plain values."""
        told = {name: getattr(self, name) for name in self.__slots__}
        return {**told, "owner": self.owner.to_json(), "host": self.owner.host}

    @classmethod
    def from_json(cls, node: int, record: Any) -> Peer:
        """Returns the record of a node; raises ValueError, KeyError or TypeError if it is none of that node."""
        if record["node"] != node:
            raise ValueError(f"expected the record of node {node}")
        host, port = record["address"]
        address = (str(IPv4Address(host)) if host else "", _number(port, 1 << 16))
        numbers = ("staged_bytes", "total_bytes", "bytes_per_second", "had_bytes")
        staged, total, rate, had = (_number(record[name]) for name in numbers)
        idle, room = _number(record.get("idle_seconds", 0)), record.get("room")  # dlio of earlier versions has neither
        return cls(
            node, address, Owner.from_json(record["owner"]), bool(record["is_complete"]), staged, total, rate,
            shortened(str(record["waiting_for"])), had, bool(record["has_left"]), idle,
            None if room is None else _number(room), bool(record.get("keeps_all", True)),
        )  # fmt: skip

    @property
    def is_stuck(self) -> bool:
        """Whether it lacks something, and has got nothing for so long that nobody waits for it."""
        return not self.is_complete and self.idle_seconds > STUCK_SECONDS

    @property
    def needs_none(self) -> bool:
        """Whether it has its whole copy: of a part, it reads the rest from others nevertheless."""
        return self.is_complete and self.keeps_all

    @property
    def lacked(self) -> int:
        """The bytes that it lacked at first."""
        return self.total_bytes - self.had_bytes

    @property
    def lacks(self) -> int:
        """The bytes that it has still to write."""
        return max(0, self.total_bytes - self.staged_bytes)


@dataclass(eq=False, slots=True)
class Other:
    """What this node knows of another one; for any number of threads, of which one at a time changes it.

    Attributes:
        peer: how it is reached; None if it is not known.
        word: what it has told of itself last; None if nothing.
        has_come: it has told something, or answered.
        has_spoken: it has answered, or asked something: what its place says may be left of an earlier run.
        heard: when it last did, or asked something.
        told: when it last told how far it is.
        failures, refusals: attempts to reach it that failed since then, and those at the end where nobody listened.
        silent_until: it is not asked before.
        distrusted_until: it has sent wrong bytes.
        is_withdrawn: its place does not know it any more.
        has_returned: another process of it was there before, so that only its own word says whether it is complete.
        looked, look_at: when its place was last looked up, 0 if never, and when it may be next.
        connections: to it.
        asking: held while it is asked how far it is.
    """

    peer: Peer | None = None
    word: Peer | None = None
    has_come: bool = False
    has_spoken: bool = False
    heard: float = 0.0
    told: float = _NEVER
    failures: int = 0
    refusals: int = 0
    silent_until: float = 0.0
    distrusted_until: float = 0.0
    is_withdrawn: bool = False
    has_returned: bool = False
    looked: float = 0.0
    look_at: float = 0.0
    connections: ConnectionPool = field(default_factory=partial(ConnectionPool, STREAMS))
    asking: world.Lock = field(default_factory=lambda: world.lock())

    @property
    def is_silent(self) -> bool:
        """Whether it did not answer a moment ago."""
        return world.monotonic() < self.silent_until

    @property
    def has_left(self) -> bool:
        """Whether it has said so."""
        return self.peer is not None and self.peer.has_left

    @property
    def is_answering(self) -> bool:
        """Whether it can be asked, or will be in a moment."""
        return self.peer is not None and not self.is_silent and not self.has_left

    @property
    def is_to_be_looked_up(self) -> bool:
        """Whether its place may say by now how it is reached."""
        return not self.is_reached and world.monotonic() >= self.look_at

    @property
    def is_reached(self) -> bool:
        """Whether it can be asked, as far as anybody knows."""
        return self.peer is not None and not self.failures and not self.has_left

    @property
    def room(self) -> int | None:
        """The bytes that it may keep; None if it has not come, or has not told."""
        return self.peer.room if self.peer and self.has_come else None

    def hears(self) -> None:
        """Notes that it has answered."""
        self.has_come, self.has_spoken, self.heard = True, True, world.monotonic()
        self.failures, self.refusals, self.silent_until = 0, 0, 0.0

    def asks(self) -> None:
        """Notes that it asks for something, so that it lives; it may have come again."""
        if not self.has_spoken:
            self.silent_until = 0.0  # now it serves; later questions do not change that it does not answer
        self.heard, self.has_spoken = world.monotonic(), True
        if not self.is_reached:
            self.look_at = min(self.look_at, self.looked + _HEARD_SECONDS[self.peer is not None])

    def fails(self, error: Exception, *, may_be_old: bool) -> None:
        """Notes that it could not be reached: it is left alone for a while, longer each time, unless it has moved.

        Args:
            error: the reason.
            may_be_old: whether its place may tell of an earlier run: then a node that refuses has not come yet, unless
                it was heard of, or its process runs here.
        """
        is_refused = isinstance(error, (ConnectionRefusedError, RefusedError))
        self.refusals = self.refusals + 1 if is_refused else 0
        if is_refused:
            is_alive = self.peer is not None and self.peer.owner.is_alive()
            self.has_come = bool(self.has_spoken or not may_be_old or is_alive)
            self.word = self.word if self.has_come else None
        pause = min(_AVOID_SECONDS * 2.0**self.failures, _LONGEST_SECONDS)
        self.silent_until = world.monotonic() + (_AGAIN_SECONDS if self.refusals == 1 else pause)
        self.failures, self.look_at = self.failures + 1, 0.0

    def moves(self, peer: Peer, *, is_word: bool, since: float) -> bool:
        """Notes what its place says; returns whether that is another process than before, which has not failed.

        Args:
            peer: what its place says.
            is_word: whether the place holds a node's word, and not only its address.
            since: when it counts as heard of if it is found for the first time.
        """
        is_new = self.peer is None or (peer.owner, peer.address) != (self.peer.owner, self.peer.address)
        is_another = is_new and self.peer is not None
        if is_new:
            self.connections.close()
            self.connections, self.heard = ConnectionPool(STREAMS), world.monotonic() if is_another else since
            self.failures, self.refusals, self.silent_until = 0, 0, 0.0
        if is_another and not peer.has_left:
            self.has_returned, self.word, self.told = True, None, _NEVER
        is_new = is_new or peer.has_left
        if is_word and is_new:
            self.has_come, self.word = True, peer
        self.peer = peer
        return is_another


class Introduced:
    """The nodes that know each other from the start, as those that MPI has introduced do; used as a `MeetingFolder`.

    Args:
        token: the job's.
        peers: all nodes, by rank.
        listener: this node's.
    """

    is_joined_by_others = False

    def __init__(self, token: bytes, peers: Sequence[Peer], listener: TcpListener) -> None:
        self.token, self._peers, self._listener, self._is_heard = token, peers, listener, False

    def listener(self, content: str) -> TcpListener:
        """Returns where this node listens."""
        self._is_heard = True
        return self._listener

    def tell(self, peer: Peer) -> bool:
        """Does nothing: all know how this node is reached."""
        return True

    def find(self, node: int) -> Peer:
        """Returns how a node is reached."""
        return self._peers[node]

    def may_be_old(self, node: int) -> bool:
        """Returns False: all have come."""
        return False

    def leave(self, last: Peer | None) -> None:
        """Has the others find nobody at this node's address."""
        if not self._is_heard:
            self._listener.listening.close()


def shown(record: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the figures of a record, with the seconds until its node has all; None for them if nothing comes."""
    left, rate = record["total_bytes"] - record["staged_bytes"], record["bytes_per_second"]
    figures = {name: value for name, value in record.items() if name not in _UNSHOWN}
    return {**figures, "seconds_left": round(left / rate, 1) if rate else None}


def _number(value: Any, end: int = 1 << 63) -> int:
    if type(value) is int and 0 <= value < end:
        return value
    raise ValueError(f"expected a number from 0 to {end - 1}")
