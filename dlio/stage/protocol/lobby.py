"""Accepts connections and verifies their clients, all in one thread: an unverified client costs little time.

A new connection is never refused because of unverified ones. The oldest of its own host gives way, or
of the host with the most. So a client that floods an agent displaces its own connections, and never a verified one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Generic, Protocol, TypeVar

from dlio.io import world
from dlio.stage.protocol import wire
from dlio.stage.protocol.connection import RefusedError

_END_SECONDS = 1.0  # for the thread to end the connections
_FULL_SECONDS = 0.1  # before the next try to accept, when descriptors are used up

Entry = TypeVar("Entry")


class Listener(Protocol):
    """Where an agent listens, and how it verifies clients; for one thread."""

    @property
    def listening(self) -> world.Socket:
        """What clients connect to."""

    @property
    def most_of_host(self) -> int:
        """How many connections of one host may be unverified at a time."""

    @property
    def most(self) -> int:
        """How many of all hosts."""

    @property
    def answer_bytes(self) -> int:
        """The bytes that a client sends after the greeting."""

    @property
    def refusal(self) -> bytes:
        """The bytes that a refused client is sent."""

    def greet(self, peer: world.Socket) -> bytes:
        """Returns what a client is sent first; raises RefusedError, or OSError if it has left."""

    def verify(self, peer: world.Socket, greeting: bytes, answer: bytes) -> tuple[bytes, bytes]:
        """Returns a client's name, and what it is sent once there is room for it; raises RefusedError, OSError."""

    def close(self) -> None:
        """Stops listening."""


L = TypeVar("L", bound=Listener)


def ended_by(stack: ExitStack, listener: L) -> L:
    """Returns a listener that a stack closes at its end, with the socket, which else the lobby's thread closes."""
    stack.callback(listener.listening.close)
    stack.callback(listener.close)
    return listener


class Waiting(Generic[Entry]):
    """Entries that wait, at most so many of one host and of all, and which of them gives way to the next one."""

    def __init__(self, most_of_host: int, most: int) -> None:
        self._most_of_host, self._most = most_of_host, most
        self._hosts: dict[str, dict[Entry, None]] = {}  # each with its oldest entry first
        self._count = 0

    def add(self, host: str, entry: Entry) -> Entry | None:
        """Adds an entry, and returns the one that gives way to it and is removed; None if there is room."""
        own, leaver = self._hosts.get(host, {}), None
        if len(own) >= self._most_of_host:
            leaver = self._oldest(host)
        elif self._count >= self._most:
            leaver = self._oldest(max(self._hosts, key=lambda each: len(self._hosts[each])))
        self._hosts.setdefault(host, {})[entry] = None
        self._count += 1
        return leaver

    def remove(self, host: str, entry: Entry) -> bool:
        """Removes an entry; returns whether it was there."""
        own = self._hosts.get(host, {})
        if entry not in own:
            return False
        del own[entry]
        self._count -= 1
        if not own:
            del self._hosts[host]
        return True

    def _oldest(self, host: str) -> Entry:
        entry = next(iter(self._hosts[host]))
        self.remove(host, entry)
        return entry


@dataclass(eq=False, slots=True)
class _Guest:
    """A connection that is not verified yet."""

    peer: world.Socket
    host: str
    listener: Listener
    waiting: Waiting[_Guest]
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
            waiting = Waiting[_Guest](listener.most_of_host, listener.most)
            self._selector.register(listener.listening, (listener, waiting))
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
            for listener, waiting in [data for data in ready if not isinstance(data, _Guest)]:
                self._accept(listener, waiting)
            for guest in list(takewhile(lambda guest: guest.deadline < world.monotonic(), self._guests)):
                self._end(guest)
        for guest in list(self._guests):
            self._end(guest)
        for listener in self._listeners:
            listener.listening.close()
        self._selector.close()

    def _accept(self, listener: Listener, waiting: Waiting[_Guest]) -> None:
        """Greets the next client."""
        try:
            peer, address = listener.listening.accept()
        except (BlockingIOError, ConnectionError):
            return
        except OSError:  # closed, or out of descriptors
            world.sleep(0 if self._is_closed else _FULL_SECONDS)
            return
        host = address[0] if address else "this node"
        guest = _Guest(peer, host, listener, waiting, world.monotonic() + wire.CONNECT_SECONDS)
        if oldest := waiting.add(host, guest):
            self._complain(oldest.host, "too many unverified connections: the oldest ones are closed")
            self._end(oldest)
        self._guests[guest] = None
        self._selector.register(peer, guest)
        try:
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
            guest.waiting.remove(guest.host, guest)
            self._selector.unregister(guest.peer)

    def _end(self, guest: _Guest) -> None:
        self._forget(guest)
        guest.peer.close()
