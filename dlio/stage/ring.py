"""A ring of processes over MPI that pass blocks on to their right neighbour, and notice when one is lost.

Waiting polls, with a short sleep between: MPI's own waiting burns a core, which the copy needs, and never ends when the
other side is dead. Only the thread that made the ring may use it.
"""

from __future__ import annotations

import atexit
import os
import sys
import time
from collections.abc import Sequence
from typing import Any

from dlio.errors import LauncherError, StorageError, missing_package
from dlio.topology import Topology

LOST_SECONDS = 20.0  # a block of 4 MiB takes milliseconds; a node that is silent for so long does not come back
_ROLL_CALL_SECONDS = 3.0
_FIRST_POLL_SECONDS, _LAST_POLL_SECONDS = 5e-5, 1e-3  # short for a fast network, longer while nothing comes
_BLOCK_TAG, _ROLL_CALL_TAG = 1, 2


class Ring:
    """Some of the processes of an MPI job, in a circle.

    Attributes:
        rank: this process's place.
        size: the number of places.
    """

    def __init__(self, communicator: Any) -> None:
        self._communicator = communicator
        self.rank = int(communicator.Get_rank())
        self.size = int(communicator.Get_size())

    def gather(self, value: object) -> list[Any]:
        """Returns the values of all processes, by place; every process calls it."""
        return list(self._communicator.allgather(value))

    def among(self, ranks: Sequence[int]) -> Ring | None:
        """Returns the ring of the processes at these places, None for one that is not among them; all call it."""
        from mpi4py import MPI

        inside = self.rank in ranks
        communicator = self._communicator.Split(0 if inside else MPI.UNDEFINED, self.rank)
        return Ring(communicator) if inside else None

    def shift(self, send: bytearray, receive: bytearray) -> None:
        """Sends one block to the right and receives one from the left.

        Raises:
            LostError: a process is lost; all others learn which. The process must not use MPI any more, and will leave
                without MPI's farewell, which would wait for the dead.
        """
        from mpi4py import MPI

        right, left = (self.rank + 1) % self.size, (self.rank - 1) % self.size
        started, pause = time.monotonic(), _FIRST_POLL_SECONDS
        try:
            requests = [self._communicator.Irecv(receive, left, _BLOCK_TAG)]
            requests.append(self._communicator.Isend(send, right, _BLOCK_TAG))
            while not MPI.Request.Testall(requests):
                if time.monotonic() - started > LOST_SECONDS:
                    raise TimeoutError(f"no block for {LOST_SECONDS:.0f} s")
                time.sleep(pause)
                pause = min(1.5 * pause, _LAST_POLL_SECONDS)
        except (TimeoutError, MPI.Exception) as error:
            leave_at_exit()
            raise LostError(self._missing(), str(error)) from error

    def _missing(self) -> list[int]:
        """Returns the places that do not answer a roll call; every survivor calls it at about the same time."""
        from mpi4py import MPI

        missing = set(range(self.size)) - {self.rank}
        sent, buffers = [], {rank: bytearray(1) for rank in missing}
        for rank in tuple(missing):
            try:
                sent.append(self._communicator.Isend(b"h", rank, _ROLL_CALL_TAG))
            except MPI.Exception:
                continue
        heard = {rank: self._communicator.Irecv(buffers[rank], rank, _ROLL_CALL_TAG) for rank in missing}
        started = time.monotonic()
        while missing and time.monotonic() - started < _ROLL_CALL_SECONDS:
            for rank in tuple(missing):
                try:
                    missing -= {rank} if heard[rank].Test() else set()
                except MPI.Exception:
                    continue
            time.sleep(_LAST_POLL_SECONDS)
        return sorted(missing)


class LostError(StorageError):
    """Processes of a ring do not answer any more.

    Attributes:
        ranks: their places.
    """

    def __init__(self, ranks: Sequence[int], problem: str) -> None:
        super().__init__(f"places {list(ranks)} in the ring are lost: {problem}")
        self.ranks = tuple(ranks)


def world(topology: Topology) -> Ring:
    """Returns all processes of the job.

    Raises:
        MissingPackageError: mpi4py is not installed.
        LauncherError: MPI does not see the processes that the launcher started.
    """
    try:
        from mpi4py import MPI
    except ImportError as error:
        raise missing_package("mpi4py", "mpi", "the strategy broadcast") from error
    ring = Ring(MPI.COMM_WORLD)
    if (ring.rank, ring.size) != (topology.rank, topology.world_size):
        raise LauncherError(
            f"MPI sees process {ring.rank} of {ring.size}, the launcher {topology.launcher} says {topology.rank} of "
            f"{topology.world_size}: start with mpiexec, or with an srun --mpi that this MPI understands"
        )
    return ring


def leave_at_exit(exit_code: int = StorageError.exit_code) -> None:
    """Makes this process end, with that exit code, without MPI's farewell, which would wait for the lost."""
    atexit.register(_leave, exit_code)


def _leave(exit_code: int) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exit_code)
