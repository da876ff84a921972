"""Serving clients: a blocking thread for each connection whose client has been verified (lobby.py)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

from dlio.errors import DlioError, MissingError
from dlio.io import world
from dlio.stage.protocol import wire
from dlio.stage.protocol.connection import is_node
from dlio.stage.protocol.lobby import Listener, Lobby
from dlio.stage.protocol.wire import Request, WireError

MAX_CONNECTIONS = 1024

_log = logging.getLogger(__name__)


class Serving:
    """Listens until it is closed.

    Args:
        listeners: where clients come in.
        prepare: carries out a request, and returns a call that sends the reply; both raise OSError if the connection
            fails. The client gets the text of a DlioError of the first.
        left: called with a client's name when it has no connection any more.
        most: connections at a time, if more than `MAX_CONNECTIONS`.
    """

    def __init__(
        self,
        listeners: Sequence[Listener],
        prepare: Callable[[world.Socket, Request, bytes], Callable[[], None]],
        left: Callable[[bytes], None] = lambda client: None,
        most: int = 0,
    ) -> None:
        self._prepare, self._left, self._most = prepare, left, most
        self._lock = world.lock()
        self._connections: dict[world.Socket, bytes] = {}
        self._idle: dict[world.Socket, None] = {}  # of other nodes, the one that has waited longest first
        self._last_used = world.monotonic()
        self._refused: set[str] = set()
        self._lobby = Lobby(listeners, self._enter, self._complain)

    @property
    def idle_seconds(self) -> float:
        """For how long no loader has been connected; other nodes do not count."""
        with self._lock:
            is_used = any(not is_node(client) for client in self._connections.values())
            return 0.0 if is_used else world.monotonic() - self._last_used

    def close(self) -> None:
        """Stops listening, and ends all connections."""
        self._lobby.close()
        with self._lock:
            open_ones = list(self._connections)
        for peer in open_ones:
            with suppress(OSError):
                peer.shutdown(world.SHUT_RDWR)

    def _enter(self, peer: world.Socket, host: str, client: bytes, last: bytes) -> None:
        """Lets a thread answer a verified client, which is sent the last bytes of its verification first."""
        world.limit(peer, wire.STALL_SECONDS)
        try:
            if self._has_room(peer, client):
                peer.sendall(last)
                world.start(partial(self._converse, peer, host, client), "dlio-serve")
                return
        except (OSError, MissingError):  # the client has left, or a limit of threads
            with self._lock:
                self._connections.pop(peer, None)
        peer.close()

    def _has_room(self, peer: world.Socket, client: bytes) -> bool:
        """Adds a connection; if there are too many, the one of another node that has been idle for longest ends."""
        with self._lock:
            if len(self._connections) >= max(self._most, MAX_CONNECTIONS):
                if not self._idle:
                    return False
                oldest = next(iter(self._idle))
                del self._idle[oldest], self._connections[oldest]
                with suppress(OSError):
                    oldest.shutdown(world.SHUT_RDWR)  # its thread ends, and the node connects again when it must
            self._connections[peer] = client
            return True

    def _converse(self, peer: world.Socket, host: str, client: bytes) -> None:
        """Answers one client until it leaves."""
        try:
            while self._wait_for_bytes(peer, client):
                self._answer(peer, wire.receive_request(peer), client)
        except WireError as error:
            self._complain(host, str(error))
        except OSError:
            pass  # the client has left, or is too slow
        finally:
            with self._lock:
                self._connections.pop(peer, None)
                self._idle.pop(peer, None)
                self._last_used = self._last_used if is_node(client) else world.monotonic()
                is_gone = client not in self._connections.values()
            peer.close()
            if is_gone:
                self._left(client)

    def _wait_for_bytes(self, peer: world.Socket, client: bytes) -> bool:
        """Waits for the next request, without a limit; returns whether there is one."""
        if is_node(client):
            with self._lock:
                if peer in self._connections:  # else it was ended to make room
                    self._idle[peer] = None
        while True:
            with suppress(BlockingIOError):  # `world.limit`
                has_more = bool(peer.recv(1, world.MSG_PEEK))
                break
        if is_node(client):
            with self._lock:
                self._idle.pop(peer, None)
        return has_more

    def _complain(self, host: str, mistake: str) -> None:
        """Logs a client's mistake, once for each host and kind."""
        if len(self._refused) < MAX_CONNECTIONS and (line := f"{host}: {mistake}") not in self._refused:
            self._refused.add(line)
            _log.warning("%s", line)

    def _answer(self, peer: world.Socket, request: Request, client: bytes) -> None:
        """Answers one request; raises OSError if the connection fails."""
        try:
            answer = self._prepare(peer, request, client)
        except DlioError as error:
            wire.send_error(peer, f"{world.host()}: {error.text}")
            return
        answer()
