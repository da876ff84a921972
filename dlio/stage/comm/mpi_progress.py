"""Progress of all processes, sent to rank 0 as MPI messages; `progress_channel.Channel` is the interface.

MPI cannot end while messages wait to be received, and rank 0 may have read none. So at the end, which waits for all
processes anyway, each process says how many messages it has sent, and rank 0 receives the rest.
"""

from __future__ import annotations

import atexit
from array import array
from functools import cache
from typing import Any

from dlio.cluster.topology import Topology

_PROGRESS_TAG = 3


class MpiChannel:
    """This process's end of the channel; for one thread at a time."""

    def __init__(self) -> None:
        from mpi4py import MPI

        self._mpi: Any = MPI
        self._world = MPI.COMM_WORLD
        self._messages: dict[int, str] = {}
        self._under_way: list[tuple[Any, bytes]] = []  # kept, since MPI reads their memory
        self._sent = self._received = 0

    def send(self, message: str) -> None:
        """Sends a message; see `Channel`."""
        if self._world.rank == 0:
            self._messages[0] = message
            return
        self._under_way = [(request, data) for request, data in self._under_way if not request.Test()]
        data = message.encode()
        self._under_way.append((self._world.Isend(data, 0, _PROGRESS_TAG), data))
        self._sent += 1

    def latest(self) -> dict[int, str]:
        """Returns the messages; see `Channel`."""
        while self._world.Iprobe(self._mpi.ANY_SOURCE, _PROGRESS_TAG):
            self._receive()
        return self._messages

    def settle(self) -> None:
        """Lets rank 0 receive all messages; every process calls it before MPI ends."""
        mine, all_sent = array("q", [self._sent]), array("q", [0])
        self._world.Reduce(mine, all_sent, self._mpi.SUM, 0)
        while self._world.rank == 0 and self._received < all_sent[0]:
            self._receive()

    def _receive(self) -> None:
        status = self._mpi.Status()
        self._world.Probe(self._mpi.ANY_SOURCE, _PROGRESS_TAG, status)
        data = bytearray(status.Get_count(self._mpi.BYTE))
        self._world.Recv(data, status.Get_source(), _PROGRESS_TAG)
        self._messages[status.Get_source()] = data.decode()
        self._received += 1


def make_channel(topology: Topology) -> None:
    """Makes this process's channel if MPI sees the launcher's processes and takes calls from any thread."""
    from mpi4py import MPI

    sees_all = (MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size) == (topology.rank, topology.world_size)
    if sees_all and MPI.Query_thread() == MPI.THREAD_MULTIPLE:
        _channel()


def made_channel() -> MpiChannel | None:
    """Returns the channel that all processes have made, or None."""
    return _channel() if _channel.cache_info().currsize else None


@cache
def _channel() -> MpiChannel:
    channel = MpiChannel()
    atexit.register(channel.settle)
    return channel
