"""Progress of all processes, sent to rank 0 as MPI messages; `progress_channel.Channel` is the interface.

MPI cannot end while messages wait to be received, and rank 0 may have read none. Its end also waits for all processes,
for ever if one is lost. So each process ends MPI itself (mpi_end.py): it says how many messages it has sent, waits for
the others as long as they live, and rank 0 receives the rest.
"""

from __future__ import annotations

import faulthandler
import os
import socket
from functools import cache
from typing import TYPE_CHECKING

from dlio.cluster import liveness
from dlio.cluster.topology import Topology
from dlio.errors import StorageError
from dlio.stage.comm.base import LostError
from dlio.stage.comm.mpi import MpiRing

if TYPE_CHECKING:
    from mpi4py import MPI

_PROGRESS_TAG = 3


class MpiChannel:
    """This process's end of the channel; for one thread at a time."""

    def __init__(self) -> None:
        from mpi4py import MPI

        self._mpi = MPI
        self._world = MPI.COMM_WORLD
        self._messages: dict[int, str] = {}
        self._under_way: list[tuple[MPI.Request, bytes]] = []  # kept, since MPI reads their memory
        self._sent = self._received = 0
        self._everyone = MpiRing(self._world.Dup(), float("inf"), liveness.LOST_SECONDS)
        self._hosts = self._everyone.gather(socket.gethostname())

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

    def end_mpi(self) -> None:
        """Lets rank 0 receive all messages and ends MPI; every process calls it, and waits for the others.

        If a process is lost while MPI ends, this one ends with the exit code 1.

        Raises:
            StorageError: processes on these hosts were lost before; MPI is not ended.
        """
        try:
            all_sent = sum(self._everyone.gather(self._sent))
        except LostError as error:
            names = ", ".join(self._hosts[rank] for rank in error.ranks) or "unknown"
            raise StorageError(f"lost while others staged or waited for it: {names} ({error})") from error
        with open(os.devnull, "w") as nowhere:  # noqa: PTH123
            faulthandler.dump_traceback_later(liveness.LOST_SECONDS, exit=True, file=nowhere)  # needs no Python to run
            while self._world.rank == 0 and self._received < all_sent:
                self._receive()
            self._everyone.close()
            self._mpi.Finalize()
            faulthandler.cancel_dump_traceback_later()

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
    return MpiChannel()
