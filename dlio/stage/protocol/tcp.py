"""Between nodes: TCP connections of which both ends have proved that they know the job's token, and mean the same data.

    server -> client   32 random bytes
    client -> server   32 random bytes, of which the first 8 name the client; HMAC of both, with the content id and the
                       server's address
    server -> client   HMAC of the same, or 32 zeros if it refuses the client

Each side's answer depends on the other's random bytes, on its own role, and on where the server listens. So nothing can
be replayed, reflected, or relayed to another server.
"""

from __future__ import annotations

import hmac
import os

from dlio.errors import StorageError
from dlio.io import limits, world
from dlio.io.world.own_address import INTERFACE
from dlio.stage.protocol import wire
from dlio.stage.protocol.connection import CLIENT_BYTES, Connection, RefusedError, exchange, is_node, persist

TOKEN_BYTES = NONCE_BYTES = 32
_PROOF_BYTES = 32
_BACKLOG = 4096  # the kernel takes its own limit if that is less


def _proof(token: bytes, role: bytes, theirs: bytes, own: bytes, content: str, server: world.Address) -> bytes:
    """Returns a proof that holds for a connection to one address only, so that nobody can relay it to another."""
    return hmac.digest(token, role + theirs + own + f"{content} {server[0]}:{server[1]}".encode(), "sha256")


class TcpListener:
    """Where an agent listens to other nodes.

    The host is the address to listen on, at any port, or a socket that listens already.
    """

    answer_bytes = NONCE_BYTES + _PROOF_BYTES
    most_of_host, most = 256, 512  # a host's 1,000 new ones a second leave each of them a quarter of a second
    refusal = bytes(_PROOF_BYTES)

    def __init__(self, host: str | world.Socket, token: bytes, content: str) -> None:
        self._token, self._content = token, content
        self.listening = listening_at(host) if isinstance(host, str) else host
        self.address: world.Address = self.listening.getsockname()[:2]

    def __str__(self) -> str:
        return f"{self.address[0]}:{self.address[1]}"

    def greet(self, peer: world.Socket) -> bytes:
        """Returns random bytes, of which the client has to prove something."""
        return world.random_bytes(NONCE_BYTES)

    def verify(self, peer: world.Socket, greeting: bytes, answer: bytes) -> tuple[bytes, bytes]:
        """Returns a client's name, and this server's proof; raises RefusedError if it has another token or data set."""
        theirs, proof, server = answer[:NONCE_BYTES], answer[NONCE_BYTES:], peer.getsockname()[:2]
        expected = _proof(self._token, b"dlio client", greeting, theirs, self._content, server)
        if not hmac.compare_digest(proof, expected):
            raise RefusedError("a client without the job's token was refused")
        world.keep_alive(peer)
        own = _proof(self._token, b"dlio server", theirs, greeting, self._content, server)
        return theirs[:CLIENT_BYTES], own

    def close(self) -> None:
        """Stops listening; the socket itself is closed by the thread that accepts."""
        self.listening.shutdown(world.SHUT_RDWR)  # closing alone does not wake it


def listening_at(host: str) -> world.Socket:
    """Returns a socket that listens at any port of an address; raises StorageError."""
    try:
        return world.listen(host, _BACKLOG)
    except OSError as error:
        reason = limits.reached(error) or os.strerror(error.errno or 0)
        raise StorageError(
            f"other nodes cannot reach this one, which does not listen at {host}: {reason}; {INTERFACE} names an "
            "interface or address of this node"
        ) from error


def connect(address: world.Address, token: bytes, content: str, client: bytes) -> Connection:
    """Returns a connection to another node's agent.

    Both ends know the job's token and mean the same content id. `CLIENT_BYTES` name a client on all its connections.

    Raises:
        RefusedError: the server has another token or data set.
        TimeoutError: it does not answer, or had no room for all of `wire.SILENCE_SECONDS`.
        OSError: it cannot be reached.
    """
    name = f"{address[0]}:{address[1]}"
    return persist(lambda: _verified(address, token, content, client), name, wire.SILENCE_SECONDS)


def _verified(address: world.Address, token: bytes, content: str, client: bytes) -> world.Socket:
    """Returns a socket on which both ends have proved the token; raises CutOffError, RefusedError, OSError."""
    deadline = world.monotonic() + wire.CONNECT_SECONDS
    peer = world.connect(address, wire.CONNECT_SECONDS)
    try:
        server = peer.getpeername()[:2]
        theirs = exchange(peer, deadline, b"", NONCE_BYTES)
        own = client + world.random_bytes(NONCE_BYTES - CLIENT_BYTES)
        mine = _proof(token, b"dlio client", theirs, own, content, server)
        proof = exchange(peer, deadline, own + mine, _PROOF_BYTES)
        if not hmac.compare_digest(proof, _proof(token, b"dlio server", own, theirs, content, server)):
            raise RefusedError("a server without the job's token was refused, or refused this client")
        world.keep_alive(peer)
        world.limit(peer, wire.SILENCE_SECONDS if is_node(client) else wire.STALL_SECONDS)
    except BaseException:
        peer.close()
        raise
    return peer
