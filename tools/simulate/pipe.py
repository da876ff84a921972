"""One direction of a simulated connection: bytes arrive in order, after a delay; not while the path is cut."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from tools.simulate.scheduler import MS

if TYPE_CHECKING:
    from tools.simulate.network import Network
    from tools.simulate.sockets import SimSocket

END, RESET = "end", "reset"  #: what else than bytes comes


@dataclass(frozen=True, slots=True)
class Path:
    """The path of a connection's direction; None for the nodes of a Unix connection.

    Attributes:
        source, target: the nodes.
        is_local: whether it stays on one node.
    """

    source: int | None
    target: int | None
    is_local: bool = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "is_local", self.source == self.target)


class Pipe:
    """From one socket to another; of at most `Weather.window` bytes on their way or unread.

    Args:
        network: what it leads through.
        path: from which node to which.
    """

    __slots__ = (
        "_coming", "_is_due", "_is_sending", "_network", "_sending", "_turn", "path", "source", "target", "used",
    )  # fmt: skip

    def __init__(self, network: Network, path: Path) -> None:
        self._network, self.path = network, path
        self.target: SimSocket | None = None
        self.source: SimSocket | None = None
        self.used = 0  #: bytes on their way or unread
        self._sending: list[bytes | str] = []  # on the sender's link
        self._coming: list[tuple[int, bytes | str]] = []
        self._is_due = self._is_sending = False
        self._turn = 0  # counts the losses of power of the sending node

    @property
    def room(self) -> int:
        """The bytes that can be sent now."""
        return max(2, self._network.weather.window) - self.used

    def send(self, item: bytes | str) -> None:
        """Sends bytes, for which there is room, or what ends the connection."""
        if isinstance(item, bytes):
            self.used += len(item)
        self._sending.append(item)
        self._transmit()

    def _transmit(self) -> None:
        """Puts on the way what will be sent, one after the other if the link has a bandwidth."""
        while self._sending and not self._is_sending:
            item = self._sending.pop(0)
            if isinstance(item, bytes) and self._network.weather.bandwidth and not self.path.is_local:
                self._is_sending = True
                assert self.path.source is not None
                assert self.path.target is not None
                sent = partial(self._sent, item, self._turn)
                self._network.flows.begin(self.path.source, self.path.target, len(item), sent)
            else:
                self._leave(item)

    def _sent(self, item: bytes | str, turn: int) -> None:
        if turn == self._turn:
            self._is_sending = False
            self._leave(item)
            self._transmit()

    def drop(self) -> None:
        """Loses what has not arrived, as when the sending node loses its power."""
        self._turn += 1
        self._sending.clear()
        self._coming.clear()
        self._is_sending = False

    def _leave(self, item: bytes | str) -> None:
        for part in self._network.pieces(item):
            at = self._network.scheduler.now + self._network.latency(self.path)
            if self._coming:
                at = max(at, self._coming[-1][0])
            self._coming.append((at, part))
        self.pump()

    def pump(self) -> None:
        """Delivers the next piece when it is due."""
        if self._coming and not self._is_due:
            self._is_due = True
            self._network.scheduler.call_at(self._coming[0][0], self._arrive)

    def _arrive(self) -> None:
        self._is_due = False
        if self._network.is_cut(self.path):
            self._network.hold(self)
            return
        now, target = self._network.scheduler.now, self.target
        while self._coming and self._coming[0][0] <= now:
            item = self._coming.pop(0)[1]
            if target is not None:
                target.receive(item)
        self.pump()

    def release(self) -> None:
        """Continues after a cut: what was lost is sent again, a little later."""
        later = self._network.scheduler.now + self._network.chance.between(1, 200) * MS
        self._coming = [(max(at, later), item) for at, item in self._coming]
        self.pump()

    def taken(self, num_bytes: int) -> None:
        """Notes that bytes were read, or thrown away, at the other end: there is room for others."""
        self.used -= num_bytes
        if self.source is not None:
            self.source.has_room()
