"""The server's end of connections: their clients are verified in one thread, then each has its own thread.

An unverified client costs little time. A new connection is never refused because of unverified ones. The oldest of its
own host gives way, or of the host with the most. So a client that floods an agent displaces its own connections, and
never a verified one.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import takewhile
from typing import TypeVar

from dlio.errors import DlioError, MissingError
from dlio.io import world
from dlio.stage.protocol import wire
from dlio.stage.protocol.connection import RefusedError, is_node
from dlio.stage.protocol.tcp import TcpListener
from dlio.stage.protocol.unix import UnixListener
from dlio.stage.protocol.wire import Request, WireError

MAX_CONNECTIONS = 1024
_END_SECONDS = 1.0  # for the thread that verifies to end its connections
_FULL_SECONDS = 0.1  # before the next try to accept, when descriptors are used up

_log = logging.getLogger(__name__)

Listener = TcpListener | UnixListener  #: where an agent listens, and how it verifies clients; for one thread
L = TypeVar("L", TcpListener, UnixListener)


def ended_by(stack: ExitStack, listener: L) -> L:
    """Returns a listener that a stack closes at its end, with the socket, which else `Serving` closes."""
    stack.callback(listener.listening.close)
    stack.callback(listener.close)
    return listener


def gives_way(hosts: Sequence[str], host: str, most_of_host: int, most: int) -> int | None:
    """Returns which of the connections that wait, by their hosts, the oldest first, gives way to one more of `host`.

    It is None as long as there is room for `most`, and for `most_of_host` of each host.
    """
    counts = Counter(hosts)
    if counts[host] >= most_of_host:
        return hosts.index(host)
    return hosts.index(counts.most_common(1)[0][0]) if len(hosts) >= most else None


@dataclass(eq=False, slots=True)
class _Guest:
    """A connection that is not verified yet."""

    peer: world.Socket
    host: str
    listener: Listener
    deadline: float
    greeting: bytes = b""
    answer: bytearray = field(default_factory=bytearray)


class _Lobby:
    """Verifies clients for a `Serving` in one thread, until it is closed."""

    def __init__(self, serving: Serving, listeners: Sequence[Listener]) -> None:
        self._serving, self._listeners = serving, listeners
        self._selector = world.selector()
        self._guests: dict[_Guest, None] = {}  # the oldest first
        self._is_closed = False
        for listener in listeners:
            listener.listening.setblocking(False)
            self._selector.register(listener.listening, listener)
        self._thread = world.start(self._run, "dlio-listen") if listeners else None

    def close(self) -> None:
        """Stops listening, and has the thread end the connections that are not verified."""
        self._is_closed = True
        for listener in self._listeners:
            with suppress(OSError):
                listener.close()
        if self._thread:
            self._thread.join(_END_SECONDS)
        else:
            self._selector.close()

    def _run(self) -> None:
        while not self._is_closed:
            oldest = next(iter(self._guests), None)
            seconds = max(0.0, oldest.deadline - world.monotonic()) if oldest else None
            ready = self._selector.select(seconds)
            for guest in [data for data in ready if isinstance(data, _Guest)]:  # before others may displace them
                self._hear(guest)
            for listener in [data for data in ready if not isinstance(data, _Guest)]:
                self._accept(listener)
            for guest in list(takewhile(lambda guest: guest.deadline < world.monotonic(), self._guests)):
                self._end(guest)
        for guest in list(self._guests):
            self._end(guest)
        for listener in self._listeners:
            listener.listening.close()
        self._selector.close()

    def _accept(self, listener: Listener) -> None:
        """Greets the next client."""
        try:
            peer, address = listener.listening.accept()
        except (BlockingIOError, ConnectionError):
            return
        except OSError:  # closed, or out of descriptors
            world.sleep(0 if self._is_closed else _FULL_SECONDS)
            return
        host = address[0] if address else "this node"
        others = [guest for guest in self._guests if guest.listener is listener]
        oldest = gives_way([guest.host for guest in others], host, listener.most_of_host, listener.most)
        if oldest is not None:
            self._serving.complain(others[oldest].host, "too many unverified connections: the oldest ones are closed")
            self._end(others[oldest])
        guest = _Guest(peer, host, listener, world.monotonic() + wire.CONNECT_SECONDS)
        self._guests[guest] = None
        try:
            self._selector.register(peer, guest)  # the system bounds what a user's selectors watch
            peer.setblocking(False)
            guest.greeting = listener.greet(peer)
            peer.sendall(guest.greeting)
        except RefusedError as error:
            self._refuse(guest, error)
        except OSError:
            self._end(guest)

    def _hear(self, guest: _Guest) -> None:
        """Receives more of a client's answer, and verifies it once it is complete."""
        listener = guest.listener
        try:
            more = guest.peer.recv(listener.answer_bytes - len(guest.answer))
            guest.answer += more
            if more and len(guest.answer) < listener.answer_bytes:
                return
            if more:
                client, last = listener.verify(guest.peer, guest.greeting, bytes(guest.answer))
                self._forget(guest)
                self._serving.enter(guest.peer, guest.host, client, last)
                return
        except BlockingIOError:
            return
        except RefusedError as error:
            self._refuse(guest, error)
            return
        except OSError:
            pass
        self._end(guest)

    def _refuse(self, guest: _Guest, error: RefusedError) -> None:
        self._serving.complain(guest.host, str(error))
        with suppress(OSError):
            guest.peer.sendall(guest.listener.refusal)
        self._end(guest)

    def _forget(self, guest: _Guest) -> None:
        """Hands a connection over, or closes it."""
        if guest in self._guests:
            del self._guests[guest]
            with suppress(KeyError):  # it could not be registered
                self._selector.unregister(guest.peer)

    def _end(self, guest: _Guest) -> None:
        self._forget(guest)
        guest.peer.close()


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
        self._lobby = _Lobby(self, listeners)

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

    def enter(self, peer: world.Socket, host: str, client: bytes, last: bytes) -> None:
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
        has_asked = False  # one that is new does not count as idle, or many nodes would end each other's in turn
        try:
            while self._wait_for_bytes(peer, is_idle=has_asked and is_node(client)):
                has_asked = True
                self._answer(peer, wire.receive_request(peer), client)
        except WireError as error:
            self.complain(host, str(error))
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

    def _wait_for_bytes(self, peer: world.Socket, *, is_idle: bool) -> bool:
        """Waits for the next request, without a limit; returns whether there is one.

        A connection that `is_idle` may be ended in the meantime to make room for another one.
        """
        if is_idle:
            with self._lock:
                if peer in self._connections:  # else it was ended to make room
                    self._idle[peer] = None
        while True:
            with suppress(BlockingIOError):  # `world.limit`
                has_more = bool(peer.recv(1, world.MSG_PEEK))
                break
        if is_idle:
            with self._lock:
                self._idle.pop(peer, None)
        return has_more

    def complain(self, host: str, mistake: str) -> None:
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
