"""A ring over MPI, by mpi4py.

Waiting polls, with a short sleep between: MPI's own waiting burns a core, which the copy needs, and never ends when the
other side is dead.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
import time
from array import array
from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from typing import Any

from dlio.errors import LauncherError, StorageError, missing_package
from dlio.stage import ring
from dlio.topology import Topology

_FIRST_POLL_SECONDS, _LAST_POLL_SECONDS = 5e-5, 1e-3  # short for a fast network, longer while nothing comes
_BLOCK_TAG, _ROLL_CALL_TAG = 1, 2


class MpiRing:
    """The processes of a communicator; `dlio.stage.ring.Ring` says what its methods do."""

    def __init__(self, communicator: Any) -> None:
        self._communicator = communicator
        self.rank = int(communicator.Get_rank())
        self.size = int(communicator.Get_size())

    def gather(self, value: Any) -> list[Any]:
        """Returns the values of all; as `Ring` says.

        Raises:
            LostError: a process did not come within ten minutes.
        """
        told = json.dumps(value).encode()
        mine, lengths = array("i", [len(told)]), array("i", [0] * self.size)
        self._wait(lambda: [self._communicator.Iallgather(mine, lengths)], ring.GATHER_SECONDS)
        ends = list(accumulate(lengths, initial=0))
        heard = bytearray(ends[-1])
        self._wait(lambda: [self._communicator.Iallgatherv(told, [heard, list(lengths)])], ring.GATHER_SECONDS)
        return [json.loads(heard[start:end]) for start, end in pairwise(ends)]

    def among(self, ranks: Sequence[int]) -> MpiRing | None:
        """Returns the ring of some; as `Ring` says."""
        from mpi4py import MPI

        inside = self.rank in ranks
        communicator = self._communicator.Split(0 if inside else MPI.UNDEFINED, self.rank)
        return MpiRing(communicator) if inside else None

    def shift(self, send: bytearray, receive: bytearray) -> None:
        """Passes one block on; as `Ring` says. After an error the process leaves without MPI's farewell."""
        right, left = (self.rank + 1) % self.size, (self.rank - 1) % self.size
        ends = self._communicator
        self._wait(
            lambda: [ends.Irecv(receive, left, _BLOCK_TAG), ends.Isend(send, right, _BLOCK_TAG)], ring.LOST_SECONDS
        )

    def _wait(self, begin: Callable[[], list[Any]], seconds: float) -> None:
        """Waits until all requests that `begin` makes are done.

        Raises:
            LostError: they are not done after so many seconds, or a process is gone.
        """
        from mpi4py import MPI

        started, pause = time.monotonic(), _FIRST_POLL_SECONDS
        try:
            requests = begin()
            while not MPI.Request.Testall(requests):
                if time.monotonic() - started > seconds:
                    raise TimeoutError(f"no word for {seconds:.0f} s")
                time.sleep(pause)
                pause = min(1.5 * pause, _LAST_POLL_SECONDS)
        except (TimeoutError, MPI.Exception) as error:
            self.leave()
            raise ring.LostError(self._missing(), str(error)) from error

    def leave(self, exit_code: int = StorageError.exit_code) -> None:
        """Makes this process end without MPI's farewell, which would wait for the lost, and with that exit code."""
        atexit.register(_leave, exit_code)

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
        while missing and time.monotonic() - started < ring.ROLL_CALL_SECONDS:
            for rank in tuple(missing):
                try:
                    missing -= {rank} if heard[rank].Test() else set()
                except MPI.Exception:
                    continue
            time.sleep(_LAST_POLL_SECONDS)
        return sorted(missing)


def mpi_world(topology: Topology) -> MpiRing:
    """Returns all processes of the MPI job.

    Raises:
        MissingPackageError: mpi4py is not installed.
        LauncherError: MPI does not see the processes that the launcher started.
    """
    try:
        from mpi4py import MPI
    except ImportError as error:
        raise missing_package("mpi4py", "mpi", "the strategy broadcast") from error
    everyone = MpiRing(MPI.COMM_WORLD)
    if (everyone.rank, everyone.size) != (topology.rank, topology.world_size):
        raise LauncherError(
            f"MPI sees process {everyone.rank} of {everyone.size}, the launcher {topology.launcher} says "
            f"{topology.rank} of {topology.world_size}: start with mpiexec, or with an srun --mpi that this MPI "
            "understands"
        )
    return everyone


def _leave(exit_code: int) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exit_code)
