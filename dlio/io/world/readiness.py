"""Waiting for sockets of the system that can be read."""

from __future__ import annotations

import selectors
from typing import Any

from dlio.io.world.interface import Socket


class SystemSelector:
    """A `Selector`."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()

    def register(self, peer: Socket, data: object) -> None:
        """Adds a socket, with what `select` returns for it."""
        self._selector.register(peer, selectors.EVENT_READ, data)

    def unregister(self, peer: Socket) -> None:
        """Removes a socket."""
        self._selector.unregister(peer)

    def select(self, timeout: float | None = None) -> list[Any]:
        """Returns the data of the sockets that can be read, after waiting for one; empty after this many seconds."""
        return [key.data for key, _ in self._selector.select(timeout)]

    def close(self) -> None:
        """Ends it; the sockets stay open."""
        self._selector.close()
