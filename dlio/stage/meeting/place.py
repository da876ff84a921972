"""Where the nodes of a job find each other: a folder (folder.py), or what all have heard of all at their start."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from dlio.stage.meeting.peer import Peer
from dlio.stage.protocol.tcp import TcpListener


class Place(Protocol):
    """Where a node tells the others how it is reached, and finds how they are; for any number of threads.

    Attributes:
        token: the job's.
        is_joined_by_others: whether others than this process may join in this node's stead, at the same place.
    """

    token: bytes
    is_joined_by_others: bool

    def listener(self, content: str) -> TcpListener:
        """Returns where this node listens to the others; raises StorageError."""

    def tell(self, peer: Peer) -> bool:
        """Tells how this node is reached; returns whether no other process has its number. Raises StorageError."""

    def find(self, node: int) -> Peer | None:
        """Returns what a node has told; None if it has not come, as far as anybody can see."""

    def leave(self, last: Peer | None) -> None:
        """Ends this node's part, with a last word or with none; nothing else may be called afterwards."""


class Introduced:
    """The nodes that know each other from the start, as those that MPI has introduced do; a `Place`.

    Args:
        token: the job's.
        peers: all nodes, by rank.
        listener: this node's.
    """

    is_joined_by_others = False

    def __init__(self, token: bytes, peers: Sequence[Peer], listener: TcpListener) -> None:
        self.token, self._peers, self._listener, self._is_heard = token, peers, listener, False

    def listener(self, content: str) -> TcpListener:
        """Returns where this node listens; see `Place`."""
        self._is_heard = True
        return self._listener

    def tell(self, peer: Peer) -> bool:
        """Does nothing: all know how this node is reached; see `Place`."""
        return True

    def find(self, node: int) -> Peer:
        """Returns how a node is reached; see `Place`."""
        return self._peers[node]

    def leave(self, last: Peer | None) -> None:
        """Has the others find nobody at this node's address; see `Place`."""
        if not self._is_heard:
            self._listener.listening.close()
