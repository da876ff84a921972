"""Progress of all processes, sent to rank 0 as MPI messages; `progress_channel.Board` is the interface.

Rank 0 may look at none of them, and MPI refuses to end while messages wait: so at its end, which waits for all anyway,
each process says how many it has sent, and rank 0 receives the rest.
"""

from __future__ import annotations

import atexit
from array import array
from functools import cache
from typing import Any

from dlio.cluster.topology import Topology

_WORD_TAG = 3


class MpiBoard:
    """This process's part, for one thread at a time."""

    def __init__(self) -> None:
        from mpi4py import MPI

        self._mpi: Any = MPI
        self._world = MPI.COMM_WORLD
        self._words: dict[int, str] = {}
        self._under_way: list[tuple[Any, bytes]] = []  # kept, since MPI reads their memory
        self._sent = self._received = 0

    def tell(self, word: str) -> None:
        """Leaves a word; as `Board` says."""
        if self._world.rank == 0:
            self._words[0] = word
            return
        self._under_way = [(request, data) for request, data in self._under_way if not request.Test()]
        data = word.encode()
        self._under_way.append((self._world.Isend(data, 0, _WORD_TAG), data))
        self._sent += 1

    def told(self) -> dict[int, str]:
        """Returns the words; as `Board` says."""
        while self._world.Iprobe(self._mpi.ANY_SOURCE, _WORD_TAG):
            self._receive()
        return self._words

    def settle(self) -> None:
        """Has rank 0 receive all that was sent; every process calls it, before the end of MPI."""
        mine, all_sent = array("q", [self._sent]), array("q", [0])
        self._world.Reduce(mine, all_sent, self._mpi.SUM, 0)
        while self._world.rank == 0 and self._received < all_sent[0]:
            self._receive()

    def _receive(self) -> None:
        status = self._mpi.Status()
        self._world.Probe(self._mpi.ANY_SOURCE, _WORD_TAG, status)
        data = bytearray(status.Get_count(self._mpi.BYTE))
        self._world.Recv(data, status.Get_source(), _WORD_TAG)
        self._words[status.Get_source()] = data.decode()
        self._received += 1


def make_board(topology: Topology) -> None:
    """Makes the board of this process, where MPI sees the launcher's processes and takes calls of any thread."""
    from mpi4py import MPI

    sees_all = (MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size) == (topology.rank, topology.world_size)
    if sees_all and MPI.Query_thread() == MPI.THREAD_MULTIPLE:
        _board()


def the_board() -> MpiBoard | None:
    """Returns the board that all processes have made, or None."""
    return _board() if _board.cache_info().currsize else None


@cache
def _board() -> MpiBoard:
    board = MpiBoard()
    atexit.register(board.settle)
    return board
