"""Connections of which both ends have proved that they know the job's token, and mean the same data set.

    server -> client   32 random bytes
    client -> server   32 random bytes, of which the first 8 name the client; HMAC of both, with the content id
    server -> client   HMAC of both, with the content id

Each side's answer depends on the other's random bytes and on its own role, so nothing can be replayed or reflected.
"""

from __future__ import annotations

import hmac
import os
import socket
import time

from dlio.errors import StorageError
from dlio.stage.live import wire
from dlio.stage.live.wire import Origin, Reply, Request, Status, WireError

TOKEN_BYTES = NONCE_BYTES = 32
CLIENT_BYTES = 8
_PROOF_BYTES = 32

Address = tuple[str, int]

_NODE = b"node"


def node_client(node: int) -> bytes:
    """Returns the name that the agent of a node has as a client."""
    return _NODE + node.to_bytes(CLIENT_BYTES - len(_NODE), "little")


def is_node(client: bytes) -> bool:
    """Returns whether a client is another node's agent."""
    return client.startswith(_NODE)


class RefusedError(WireError):
    """The other end did not prove that it knows the token."""


def _proof(token: bytes, role: bytes, theirs: bytes, own: bytes, content: str, server: Address) -> bytes:
    """Returns a proof that holds for a connection to one address only, so that nobody can relay it to another."""
    return hmac.digest(token, role + theirs + own + f"{content} {server[0]}:{server[1]}".encode(), "sha256")


def accept(peer: socket.socket, token: bytes, content: str) -> bytes:
    """Returns the name of a client, once both ends have proved the token.

    Raises:
        RefusedError: the client has another token or data set.
        OSError: the connection failed, or was too slow.
    """
    own, server = os.urandom(NONCE_BYTES), peer.getsockname()[:2]
    deadline = time.monotonic() + wire.CONNECT_SECONDS
    _send(peer, own, deadline)
    answer = _receive(peer, NONCE_BYTES + _PROOF_BYTES, deadline)
    theirs, proof = answer[:NONCE_BYTES], answer[NONCE_BYTES:]
    if not hmac.compare_digest(proof, _proof(token, b"dlio client", own, theirs, content, server)):
        raise RefusedError("a client without the job's token was refused")
    _send(peer, _proof(token, b"dlio server", theirs, own, content, server), deadline)
    _settle(peer, wire.STALL_SECONDS)
    return theirs[:CLIENT_BYTES]


def _prove(peer: socket.socket, token: bytes, content: str, client: bytes, deadline: float) -> None:
    """Proves the token to a server, which has to prove its own; raises as `accept`."""
    theirs = _receive(peer, NONCE_BYTES, deadline)
    server = peer.getpeername()[:2]
    own = client + os.urandom(NONCE_BYTES - CLIENT_BYTES)
    _send(peer, own + _proof(token, b"dlio client", theirs, own, content, server), deadline)
    proof = _receive(peer, _PROOF_BYTES, deadline)
    if not hmac.compare_digest(proof, _proof(token, b"dlio server", own, theirs, content, server)):
        raise RefusedError("a server without the job's token was refused")
    _settle(peer, wire.SILENCE_SECONDS if is_node(client) else wire.STALL_SECONDS)


def _settle(peer: socket.socket, seconds: float) -> None:
    peer.settimeout(seconds)
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError("the token was not proved in time")
    return left


def _send(peer: socket.socket, data: bytes, deadline: float) -> None:
    peer.settimeout(_left(deadline))
    peer.sendall(data)


def _receive(peer: socket.socket, num_bytes: int, deadline: float) -> bytes:
    data = b""
    while len(data) < num_bytes:
        peer.settimeout(_left(deadline))
        more = peer.recv(num_bytes - len(data))
        if not more:
            raise RefusedError("the connection was closed before the token was proved")
        data += more
    return data


class Connection:
    """A client's connection to an agent; for one thread at a time.

    Args:
        address: where the agent listens.
        token: the job's.
        content: the content id of the data set.
        client: `CLIENT_BYTES` that name the client on all of its connections.

    Raises:
        RefusedError: the server has another token or data set.
        OSError: it cannot be reached in time; a loader waits longer than a node, since it has nobody else to ask.
    """

    def __init__(self, address: Address, token: bytes, content: str, client: bytes) -> None:
        seconds = wire.CONNECT_SECONDS if is_node(client) else wire.STALL_SECONDS
        deadline = time.monotonic() + seconds
        self._peer = socket.create_connection(address, seconds)
        try:
            _prove(self._peer, token, content, client, deadline)
        except BaseException:
            self.close()
            raise

    def ask(self, request: Request, *, limit: int = 0, patience: float = float("inf")) -> Reply:
        """Returns the head of the reply; `receive_into` is to take the body next.

        Args:
            request: what is asked.
            limit: the bytes that the body may have.
            patience: seconds to wait in all, though the server says that it is still at it.

        Raises:
            AgentError: the server could not do it; the connection can be used again.
            WireError: the server does not follow the protocol.
            OSError: the connection failed, or the server was silent for too long.
        """
        deadline = time.monotonic() + patience
        wire.send_request(self._peer, request)
        reply = wire.receive_reply(self._peer, limit)
        while reply.status == Status.WAIT:
            if time.monotonic() > deadline:
                raise TimeoutError(f"no answer within {patience:g} s")
            reply = wire.receive_reply(self._peer, limit)
        if reply.status == Status.ERROR:
            raise AgentError(wire.receive(self._peer, reply.length).decode(errors="replace"))
        return reply

    def read(self, request: Request, target: memoryview, patience: float = float("inf")) -> Origin | None:
        """Fills `target`, as long as the request's ranges; returns None if the node does not have them.

        Raises:
            AgentError, WireError, OSError: as `ask`.
        """
        status, origin, length = self.ask(request, limit=len(target), patience=patience)
        if status != Status.OK:
            return None
        if length != len(target):
            raise WireError(f"{length:,} bytes were sent, {len(target):,} asked for")
        self.receive_into(target)
        return origin

    def receive_into(self, target: memoryview) -> None:
        """Fills `target` with the next bytes of a body; raises WireError or OSError if the connection fails."""
        wire.receive_into(self._peer, target)

    def close(self) -> None:
        """Closes the connection; may be called twice."""
        self._peer.close()


class AgentError(StorageError):
    """An agent's own words on why it could not do what was asked."""
