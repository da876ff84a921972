"""The nodes of a job that know each other's addresses from the start, as those that MPI has introduced do.

They ask each other how far they are, over the connections by which they pass files, and need no shared folder.
"""

from __future__ import annotations

import json
from collections import deque
from dataclasses import replace
from functools import partial

from dlio.io import world
from dlio.io.threads import started_up_to
from dlio.stage.meeting.meeting import Peer
from dlio.stage.protocol import tcp
from dlio.stage.protocol.connection import Connection, ConnectionPool, RefusedError, node_client
from dlio.stage.protocol.tcp import TcpListener
from dlio.stage.protocol.wire import MAX_STAT, SILENCE_SECONDS, Op, Request

_THREADS, _MOST_LOOKS = 4, 50  # that look at other nodes, and how often each does in a second
_SOON_SECONDS, _HUNG_SECONDS = 0.25, 5.0  # between two looks at a node, and at one that did not answer
_FAREWELL_SECONDS, _POLL_SECONDS = 2.0, 5e-3


class Introduced:
    """The nodes that know each other's addresses, and ask each other how far they are; a `Place`.

    Args:
        content: the content id of the data set.
        token: the job's.
        node: this node's rank.
        addresses: of all nodes, by rank.
        listener: this node's.
    """

    is_joined_by_others = False

    def __init__(
        self, content: str, token: bytes, node: int, addresses: list[world.Address], listener: TcpListener
    ) -> None:
        self.token = token
        self._content, self._node, self._addresses, self._listener = content, node, addresses, listener
        self._known: dict[int, tuple[Peer, float]] = {}
        self._gone: set[int] = set()
        self._silent: set[int] = set()  # they did not answer when they were asked last
        self._complete: set[int] = set()
        self._told: set[int] = set()
        self._has_all = False
        others = [each for each in range(len(addresses)) if each != node]
        self._due = deque((0.0, each, ConnectionPool(1)) for each in others)
        self._over, self._is_heard = world.event(), False

    def listener(self, content: str) -> TcpListener:
        """Returns where this node listens; see `Place`."""
        self._is_heard = True
        started_up_to(min(_THREADS, len(self._due)), self._look_round, "dlio-look")
        return self._listener

    def tell(self, peer: Peer) -> None:
        """Waits a moment, once this node has all, until the others know it: they ask, or are asked; see `Place`."""
        if self._has_all or not peer.is_complete:
            return
        self._has_all, deadline = True, world.monotonic() + _FAREWELL_SECONDS
        while set(self._known) - self._gone - self._told and world.monotonic() < deadline:
            world.sleep(_POLL_SECONDS)

    def look(self, node: int) -> tuple[Peer, object] | None:
        """Returns what a node has answered, and when; see `Place`."""
        found = self._known.get(node)
        if found and node in self._complete:
            has_left = node in self._gone
            return replace(found[0], is_complete=True, staged=found[0].total, has_left=has_left), self._sign(node)
        return (found[0], self._sign(node)) if found and node not in self._gone else None

    def _sign(self, node: int) -> float:
        """Returns a sign of life, new while a node has answered whenever asked: a round of many takes a minute."""
        return self._known[node][1] if node in self._silent else world.monotonic()

    def nodes(self) -> range:
        """Returns all nodes; see `Place`."""
        return range(len(self._addresses))

    def heard(self, node: int) -> None:
        """Notes that a node has all; see `Place`."""
        if node < len(self._addresses):
            self._complete.add(node)

    def has_gone(self, node: int) -> bool:
        """Returns whether nobody listens any more where a node did; see `Place`."""
        return node in self._gone

    def leave(self, last: Peer | None) -> None:
        """Ends the asking; the others find nobody at this node's address; see `Place`."""
        self._over.set()
        if not self._is_heard:
            self._listener.listening.close()

    def _look_round(self) -> None:
        """Asks the other nodes how far they are, one after another, until they have left."""
        while not self._over.is_set():
            try:
                due, node, pool = self._due.popleft()
            except IndexError:  # other threads ask those that are left
                return
            self._over.wait(max(1 / _MOST_LOOKS, due - world.monotonic()))
            pause = self._ask(node, pool)
            if pause is None or self._over.is_set():
                pool.close()
            else:
                self._due.append((world.monotonic() + pause, node, pool))

    def _ask(self, node: int, pool: ConnectionPool) -> float | None:
        """Returns the seconds until the node shall be asked again; None if it has left."""
        has_all = self._has_all
        try:
            peer = pool.use(partial(_word_of, node=node, has_all=has_all), lambda: tcp.connect(
                self._addresses[node], self.token, self._content, node_client(self._node)
            ))  # fmt: skip
        except (ConnectionRefusedError, RefusedError):
            self._gone.add(node)
            return None
        except (
            OSError,
            ValueError,
            KeyError,
            TypeError,
            RecursionError,
        ):  # it does not serve yet, hangs, or is cut off
            self._silent.add(node)
            return _SOON_SECONDS if node not in self._known else _HUNG_SECONDS
        if has_all:
            self._told.add(node)
        self._known[node] = (peer, world.monotonic())
        self._silent.discard(node)
        return _SOON_SECONDS


def _word_of(connection: Connection, *, node: int, has_all: bool) -> Peer:
    """Returns what a node tells of itself; raises OSError, ValueError, KeyError or TypeError."""
    reply = connection.ask(Request(Op.PEER, int(has_all)), limit=MAX_STAT, patience=SILENCE_SECONDS)
    body = bytearray(reply.length)
    connection.receive_into(memoryview(body))
    return Peer.from_json(node, json.loads(body))
