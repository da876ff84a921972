"""What a node of a job tells the others of itself."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from ipaddress import IPv4Address
from typing import Any

from dlio.io import world
from dlio.locking.owner import Owner

MOST_TEXT, _HEAD = 200, 60  # characters of what failed, and of its beginning if it is longer


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
        """Returns the record of a node; raises ValueError, KeyError or TypeError if it is none of that node."""
        if record["node"] != node:
            raise ValueError(f"expected the record of node {node}")
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
