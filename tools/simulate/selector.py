"""Simulated selectors."""

from __future__ import annotations

from tools.simulate.network import Network
from tools.simulate.primitives import Waiting
from tools.simulate.process import Process
from tools.simulate.sockets import SimSocket


class SimSelector:
    """A `Selector`."""

    def __init__(self, network: Network, process: Process) -> None:
        self._network, self._process = network, process
        self._data: dict[SimSocket, object] = {}
        self._waiting = Waiting(network.scheduler)

    def register(self, peer: SimSocket, data: object) -> None:
        """Adds a socket; see `Selector`."""
        self._network.scheduler.check()
        self._data[peer] = data
        peer.watchers[self] = None

    def unregister(self, peer: SimSocket) -> None:
        """Removes a socket; see `Selector`."""
        self._network.scheduler.check()
        del self._data[peer]
        peer.watchers.pop(self, None)

    def wake(self) -> None:
        """Makes `select` check again."""
        self._waiting.wake_all()

    def select(self, timeout: float | None = None) -> list[object]:
        """Waits for sockets that can be read; see `Selector`."""
        scheduler = self._network.scheduler
        if scheduler.eagerness:
            scheduler.pass_by()
        ns = self._process.clock.ns(timeout)
        deadline = None if ns is None else scheduler.now + ns
        while True:
            ready = [data for peer, data in self._data.items() if peer.is_readable and not peer.is_closed]
            if ready or (deadline is not None and scheduler.now >= deadline):
                return self._network.chance.shuffled(ready)
            self._waiting.wait(None if deadline is None else deadline - scheduler.now)

    def close(self) -> None:
        """Ends it; see `Selector`."""
        self._network.scheduler.check()
        for peer in self._data:
            peer.watchers.pop(self, None)
        self._data.clear()
