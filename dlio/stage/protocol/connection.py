"""Connections to an agent once both ends have verified each other: how a client gets one, and keeps it.

Loaders of a node connect by a Unix socket (unix.py), other nodes by TCP (tcp.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from dlio.errors import StorageError
from dlio.io import world
from dlio.locking.fork_lock import ForkLock
from dlio.stage.protocol import wire
from dlio.stage.protocol.wire import Origin, Reply, Request, Status, WireError

CLIENT_BYTES = 8  # that name a client on all of its connections
_PAUSES = (0.01, 1.0)  # before the next attempt to connect: the first, twice as long each time, the longest

_NODE = b"node"
Answer = TypeVar("Answer")


def node_client(node: int) -> bytes:
    """Returns the name that the agent of a node has as a client."""
    return _NODE + node.to_bytes(CLIENT_BYTES - len(_NODE), "little")


def is_node(client: bytes) -> bool:
    """Returns whether a client is another node's agent."""
    return client.startswith(_NODE)


def node_of(client: bytes) -> int:
    """Returns the node whose agent a client is."""
    return int.from_bytes(client[len(_NODE) :], "little")


class RefusedError(WireError):
    """The other end is not who it must be."""


class CutOffError(WireError):
    """The other end had no room for the connection, and ended it before it was verified."""


class BusyError(TimeoutError):
    """An agent is still at it, and says so, after all the time that a client has."""


class AgentError(StorageError):
    """The message of an agent that could not do what a client asked."""


class Connection:
    """A client's connection to an agent, on which both ends have verified each other; for one thread at a time."""

    def __init__(self, peer: world.Socket) -> None:
        self._peer = peer

    def ask(self, request: Request, *, limit: int = 0, patience: float = float("inf")) -> Reply:
        """Returns the head of the reply; `receive_into` is to take the body next.

        Args:
            request: what is asked.
            limit: the bytes that the body may have.
            patience: seconds to wait in all, though the server reports that it still works.

        Raises:
            AgentError: the server could not do it; the connection can be used again.
            WireError: the server does not follow the protocol.
            BusyError: the server has said for all that time that it is still at it.
            OSError: the connection failed, or the server was silent for too long.
        """
        deadline = world.monotonic() + patience
        wire.send_request(self._peer, request)
        reply = wire.receive_reply(self._peer, limit)
        while reply.status == Status.WAIT:
            if world.monotonic() > deadline:
                raise BusyError(f"no answer within {patience:g} s")
            reply = wire.receive_reply(self._peer, limit)
        if reply.status == Status.ERROR:
            raise AgentError(wire.receive(self._peer, reply.length).decode(errors="replace"))
        return reply

    def read(self, request: Request, target: memoryview, patience: float = float("inf")) -> Origin | None:
        """Fills `target`, as long as the request's ranges; returns None if the node lacks them; raises as `ask`."""
        status, origin, length = self.ask(request, limit=len(target), patience=patience)
        if status != Status.OK:
            return None
        if length != len(target):
            raise WireError(f"{length:,} bytes were sent, {len(target):,} asked for")
        self.receive_into(target)
        return origin

    def answer(self, request: Request, *, limit: int, patience: float = float("inf")) -> bytearray:
        """Returns the body of a reply; empty if the server has nothing; the arguments and errors are those of `ask`."""
        data = bytearray(self.ask(request, limit=limit, patience=patience).length)
        self.receive_into(memoryview(data))
        return data

    def receive_into(self, target: memoryview) -> None:
        """Fills `target` with the next bytes of a body; raises WireError or OSError if the connection fails."""
        wire.receive_into(self._peer, target)

    def close(self) -> None:
        """Closes the connection; may be called twice."""
        self._peer.close()


def persist(attempt: Callable[[], world.Socket], name: str, seconds: float) -> Connection:
    """Returns a connection, which is tried again, after growing pauses, while the server has no room for it.

    Args:
        attempt: returns a socket on which both ends have verified each other; raises CutOffError if there is no room.
        name: of the server, for the error message.
        seconds: for which it is tried again.

    Raises:
        TimeoutError: the server had no room in all that time; says how often it was tried.
        RefusedError, OSError: as `attempt`.
    """
    deadline, (pause, longest), tries = world.monotonic() + seconds, _PAUSES, 0
    while True:
        tries += 1
        try:
            return Connection(attempt())
        except CutOffError as error:
            if world.monotonic() + pause > deadline:
                raise TimeoutError(
                    f"{name} ended each of {tries} connections within {seconds:g} s before they were verified: it has "
                    "too many others"
                ) from error
        world.sleep(pause)
        pause = min(2 * pause, longest)


def exchange(peer: world.Socket, deadline: float, data: bytes, num_bytes: int) -> bytes:
    """Sends bytes before a connection is verified, and returns the next `num_bytes` that the server sends.

    Raises:
        CutOffError: the server has ended the connection.
        TimeoutError: the deadline has passed.
    """
    found = bytearray()
    try:
        peer.settimeout(_left(deadline))
        peer.sendall(data)
        while len(found) < num_bytes:
            peer.settimeout(_left(deadline))
            more = peer.recv(num_bytes - len(found))
            if not more:
                raise CutOffError("the connection was closed before it was verified")
            found += more
    except ConnectionError as error:  # a reset, by a server that had not read all of it
        raise CutOffError(f"the connection was cut off before it was verified: {error.strerror}") from error
    return bytes(found)


def _left(deadline: float) -> float:
    left = deadline - world.monotonic()
    if left <= 0:
        raise TimeoutError("the connection was not verified in time")
    return left


class ConnectionPool:
    """Connections to one agent, of which so many are kept; for any number of threads."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = ForkLock()
        self._idle: list[Connection] = []

    def use(self, ask: Callable[[Connection], Answer], connect: Callable[[], Connection]) -> Answer:
        """Returns what `ask` does; on a new connection if one breaks, which shows whether the agent has ended.

        Raises:
            AgentError: the agent could not do it.
            OSError: it does not answer; what was not answered in time is not asked a second time.
        """
        connection = self._kept() or connect()
        try:
            return self._on(connection, ask)
        except (AgentError, TimeoutError):
            raise
        except OSError:
            self.close()  # if the agent has ended, all of them are closed
        return self._on(connect(), ask)

    def close(self) -> None:
        """Closes the connections that no request uses; the pool can be used again."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def _on(self, connection: Connection, ask: Callable[[Connection], Answer]) -> Answer:
        """Returns what `ask` does, and keeps the connection unless it failed."""
        try:
            answer = ask(connection)
        except AgentError:
            self._keep(connection)
            raise
        except BaseException:
            connection.close()
            raise
        self._keep(connection)
        return answer

    def _kept(self) -> Connection | None:
        with self._lock:
            return self._idle.pop() if self._idle else None

    def _keep(self, connection: Connection) -> None:
        with self._lock:
            if len(self._idle) < self._most:
                self._idle.append(connection)
                return
        connection.close()
