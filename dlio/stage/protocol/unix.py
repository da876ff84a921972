"""On a node: Unix sockets in a folder of the user's own (mode 700), so that no other user reaches them at all.

    client -> server   8 bytes that name the client
    server -> client   the same

Each end asks the system for the other's user, which must be this one or root. A client that reaches the socket has
found it in the copy's own folder, so both ends mean the same data set.

A copy's socket lies in its folder of live files, so that containers that share the copy share it. If that file system
has no sockets, it lies in `/tmp/dlio-u<uid>/agents`. Sockets are bound and reached through an open folder, so their
paths may be longer than the 107 bytes that a socket's address holds.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path

from dlio.errors import StorageError
from dlio.io import world
from dlio.io.open_folder import OpenFolder
from dlio.stage.copies.live_folder import SOCKET, LiveFolder
from dlio.stage.copies.locations import LISTED_AT, open_own
from dlio.stage.protocol import wire
from dlio.stage.protocol.connection import CLIENT_BYTES, Connection, CutOffError, RefusedError, exchange, persist

_AGENTS = "agents"
_BACKLOG = 4096  # the kernel takes its own limit if that is less


class UnixListener:
    """Where an agent listens to the loaders of its node.

    Args:
        live: the copy's folder; it exists.

    Attributes:
        where: the socket's name in the folder, or its path elsewhere; for `AgentRecord.socket`.

    Raises:
        StorageError: no folder of this user's can hold a socket; says which were tried.
    """

    answer_bytes = CLIENT_BYTES
    most_of_host = most = 1024  # of this user's own loaders, which all begin at once
    refusal = bytes(CLIENT_BYTES)

    def __init__(self, live: LiveFolder) -> None:
        self._live = live
        try:
            self.where = SOCKET
            self.listening, self._inode = _listening(live, SOCKET)
        except OSError as error:
            try:
                self.where = _elsewhere(live)
                self.listening, self._inode = _listening(live, self.where)
            except OSError as second:
                raise StorageError(
                    f"no Unix socket can be made in {live.path} ({error.strerror}), nor below {LISTED_AT} "
                    f"({second.strerror}): stage to a folder on another file system"
                ) from second

    def __str__(self) -> str:
        return str(self._live.path / self.where)

    def greet(self, peer: world.Socket) -> bytes:
        """Returns nothing to say before the client speaks; raises RefusedError if it is another user's."""
        _check_user(peer, "a client")
        return b""

    def verify(self, peer: world.Socket, greeting: bytes, answer: bytes) -> tuple[bytes, bytes]:
        """Returns a client's name, twice: it is what the client is told."""
        return answer, answer

    def close(self) -> None:
        """Stops listening and removes the socket's name; the socket itself is closed by the thread that accepts."""
        self.listening.shutdown(world.SHUT_RDWR)  # closing alone does not wake it
        name = Path(self.where).name
        with suppress(OSError), _folder(self._live, self.where) as folder:
            if (status := folder.look(name)) and status.st_ino == self._inode:  # else the next agent's
                folder.unlink(name)


def connect(live: LiveFolder, where: str, client: bytes) -> Connection:
    """Returns a connection to the agent of this node that fills or serves a copy.

    The agent's record says where it listens. `CLIENT_BYTES` name a client on all its connections.

    Raises:
        RefusedError: another user's process listens there.
        TimeoutError: it does not answer, or had no room for all of `wire.PERSIST_SECONDS`.
        OSError: it cannot be reached; a socket whose agent was killed refuses connections.
    """
    return persist(lambda: _verified(live, where, client), "the agent", wire.PERSIST_SECONDS)


def _verified(live: LiveFolder, where: str, client: bytes) -> world.Socket:
    """Returns a socket on which both ends have verified each other; raises CutOffError, RefusedError, OSError."""
    deadline = world.monotonic() + wire.STALL_SECONDS
    peer = world.unix_socket()
    try:
        peer.settimeout(wire.STALL_SECONDS)
        with _folder(live, where) as folder:
            try:
                peer.connect(_address(folder, where))
            except BlockingIOError as error:
                raise CutOffError("too many connections wait to be accepted") from error
        _check_user(peer, "a server")
        if exchange(peer, deadline, client, CLIENT_BYTES) != client:
            raise RefusedError("the agent refused this user, or runs another version of dlio")
        world.limit(peer, wire.STALL_SECONDS)
    except BaseException:
        peer.close()
        raise
    return peer


def _check_user(peer: world.Socket, what: str) -> None:
    """Raises RefusedError if the process at the other end, as the system knows it, is not this user's or root's."""
    user = world.user_of(peer)
    if user not in (0, os.geteuid()):
        raise RefusedError(f"{what} of user {user} was refused")


def _listening(live: LiveFolder, where: str) -> tuple[world.Socket, int]:
    """Returns a socket that only this user may connect to, and its inode; replaces one that a killed agent has left."""
    found = world.unix_socket()
    try:
        with _folder(live, where) as folder:
            with suppress(FileNotFoundError):
                folder.unlink(Path(where).name)
            found.bind(_address(folder, where))
            if (status := folder.look(Path(where).name)) is None:
                raise FileNotFoundError(errno.ENOENT, "another process has removed it")
        found.listen(_BACKLOG)
    except BaseException:
        found.close()
        raise
    return found, status.st_ino


def _folder(live: LiveFolder, where: str) -> OpenFolder:
    """Returns the folder of a socket, held open; raises OSError."""
    return live.open() if where == SOCKET else open_own(_AGENTS, 0o700)


def _elsewhere(live: LiveFolder) -> str:
    """Returns where else the socket of a copy may lie; the next agent's is the same. Raises OSError."""
    status = live.path.stat()
    with open_own(_AGENTS, 0o700) as folder:
        return str(folder.path / f"{status.st_dev:x}-{status.st_ino:x}")


def _address(folder: OpenFolder, where: str) -> str:
    return f"/proc/self/fd/{folder.descriptor}/{Path(where).name}"
