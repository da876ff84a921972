"""Accepts connections and verifies their clients, all in one thread: an unverified client costs little time.

A new connection is never refused because of unverified ones. The oldest of its own host gives way, or
of the host with the most. So a client that floods an agent displaces its own connections, and never a verified one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from itertools import takewhile
from typing import TypeVar

from dlio.io import world
from dlio.stage.protocol import wire
from dlio.stage.protocol.connection import RefusedError
from dlio.stage.protocol.tcp import TcpListener
from dlio.stage.protocol.unix import UnixListener

_END_SECONDS = 1.0  # for the thread to end the connections
_FULL_SECONDS = 0.1  # before the next try to accept, when descriptors are used up

Listener = TcpListener | UnixListener  #: where an agent listens, and how it verifies clients; for one thread
L = TypeVar("L", TcpListener, UnixListener)


def ended_by(stack: ExitStack, listener: L) -> L:
    """Returns a listener that a stack closes at its end, with the socket, which else the lobby's thread closes."""
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


class Lobby:
    """Runs until it is closed, if there are listeners.

    Args:
        listeners: where clients come in.
        enter: takes over the socket of a verified client, with its host and name, and what it shall be sent first.
        complain: called with a host and what it did wrong.
    """

    def __init__(
        self,
        listeners: Sequence[Listener],
        enter: Callable[[world.Socket, str, bytes, bytes], None],
        complain: Callable[[str, str], None],
    ) -> None:
        self._listeners, self._enter, self._complain = listeners, enter, complain
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
            self._complain(others[oldest].host, "too many unverified connections: the oldest ones are closed")
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
                self._enter(guest.peer, guest.host, client, last)
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
        self._complain(guest.host, str(error))
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
