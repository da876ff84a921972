"""What a node of a job tells of itself: to the other nodes, to its machine's loaders, and to `dlio stage --status`.

It is one record everywhere: in the folder where the nodes meet, in the answers to PEER and STAT (protocol/wire.py),
and what `--status` prints. That leaves out `_UNSHOWN`, and adds the time that is left.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address
from typing import Any

from dlio.io import world
from dlio.locking.owner import Owner

_UNSHOWN = ("address", "owner", "had_bytes", "has_left", "idle_seconds", "room", "keeps_all")
JOIN_SECONDS = 5.0  # after which a node that has not come is taken for lost, until it comes
LATE_SECONDS = 60.0  # so long its part is left to it where nobody waits: a thousand nodes start in that time
STUCK_SECONDS = 600.0  # without a block: nobody waits any longer for a node
MOST_TEXT, _HEAD = 200, 60  # characters of what failed, and of its beginning if it is longer


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
        keeps_all: whether it keeps its whole copy; else it needs others in each epoch.
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
        """Whether it has all that it will ever read."""
        return self.is_complete and self.keeps_all

    @property
    def lacked(self) -> int:
        """The bytes that it lacked at first."""
        return self.total_bytes - self.had_bytes

    @property
    def lacks(self) -> int:
        """The bytes that it has still to write."""
        return max(0, self.total_bytes - self.staged_bytes)


def shown(record: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the figures of a record, with the seconds until its node has all; None for them if nothing comes."""
    left, rate = record["total_bytes"] - record["staged_bytes"], record["bytes_per_second"]
    figures = {name: value for name, value in record.items() if name not in _UNSHOWN}
    return {**figures, "seconds_left": round(left / rate, 1) if rate else None}


def _number(value: Any, end: int = 1 << 63) -> int:
    if type(value) is int and 0 <= value < end:
        return value
    raise ValueError(f"expected a number from 0 to {end - 1}")
