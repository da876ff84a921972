"""A ring over MPI, by mpi4py.

Waiting polls with short sleeps. MPI's own waiting would use a whole core, which the copy needs, and would never end if
the other side is dead.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, TypeVar

from dlio.cluster import liveness
from dlio.cluster.topology import Topology
from dlio.errors import LauncherError, StorageError, missing_package
from dlio.io.threads import started
from dlio.stage.comm import base
from dlio.stage.comm.heartbeat import MpiHeartbeat

if TYPE_CHECKING:
    from mpi4py import MPI

_leaving: list[int] = []  # the exit code, once this process is to end without MPI_Finalize
_FIRST_POLL_SECONDS, _LAST_POLL_SECONDS = 5e-5, 1e-3  # short for a fast network, longer while nothing comes
_BLOCK_TAG = 1

T = TypeVar("T")


class MpiRing:
    """The processes of a communicator; the methods are those of `dlio.stage.comm.base.Ring`.

    Args:
        communicator: of MPI.
        gather_seconds: how long to wait for processes that live.
        answer_seconds: how long to wait for answers to a roll call.
    """

    def __init__(
        self,
        communicator: MPI.Comm,
        gather_seconds: float = liveness.GATHER_SECONDS,
        answer_seconds: float = liveness.ROLL_CALL_SECONDS,
    ) -> None:
        from mpi4py import MPI

        self._mpi, self._communicator, self._gather_seconds = MPI, communicator, gather_seconds
        self.rank = int(communicator.Get_rank())
        self.size = int(communicator.Get_size())
        self._heartbeat = MpiHeartbeat(communicator, answer_seconds)
        self._rings: list[MpiRing] = []

    def gather(self, value: T) -> list[T]:
        """Returns the values of all processes; see `Ring`."""
        told = json.dumps(value).encode()
        mine, lengths = array("i", [len(told)]), array("i", [0] * self.size)
        self._wait_for(lambda: [self._communicator.Iallgather(mine, lengths)], self._gather_seconds)
        ends = list(accumulate(lengths, initial=0))
        heard = bytearray(ends[-1])
        self._wait_for(lambda: [self._communicator.Iallgatherv(told, [heard, list(lengths)])], self._gather_seconds)
        return [json.loads(heard[start:end]) for start, end in pairwise(ends)]

    def among(self, ranks: Sequence[int]) -> MpiRing | None:
        """Returns the ring of some ranks; see `Ring`."""
        made: list[MPI.Comm] = []
        color = 0 if self.rank in ranks else self._mpi.UNDEFINED
        split = started(lambda: made.append(self._communicator.Split(color, self.rank)), "dlio-split")  # it waits
        self._wait(lambda: not split.is_alive(), self._gather_seconds)
        self._rings += [MpiRing(communicator) for communicator in made if communicator != self._mpi.COMM_NULL]
        return self._rings[-1] if self.rank in ranks else None

    def shift(self, send: bytearray, receive: bytearray) -> None:
        """Passes one block on; see `Ring`. After an error the process ends without MPI_Finalize."""
        right, left = (self.rank + 1) % self.size, (self.rank - 1) % self.size
        ends = self._communicator
        self._wait_for(
            lambda: [ends.Irecv(receive, left, _BLOCK_TAG), ends.Isend(send, right, _BLOCK_TAG)], liveness.LOST_SECONDS
        )

    def _wait_for(self, begin: Callable[[], list[MPI.Request]], seconds: float) -> None:
        """Starts requests by `begin` and waits until all are done; raises as `_wait`."""
        requests: list[MPI.Request] = []

        def are_done() -> bool:
            requests.extend([] if requests else begin())
            return bool(self._mpi.Request.Testall(requests))

        self._wait(are_done, seconds)

    def _wait(self, is_done: Callable[[], bool], seconds: float) -> None:
        """Waits until `is_done`; raises LostError."""
        started, pause = time.monotonic(), _FIRST_POLL_SECONDS
        looked = started
        try:
            while not is_done() and not self._heartbeat.lost:
                now = time.monotonic()
                if now - looked >= liveness.LOST_SECONDS:
                    if self._heartbeat.find_lost() or now - started >= seconds:
                        raise TimeoutError(f"no word for {now - started:.0f} s")
                    looked = now
                time.sleep(pause)
                pause = min(1.5 * pause, _LAST_POLL_SECONDS)
            if self._heartbeat.lost:
                raise TimeoutError("as another node found")
        except (TimeoutError, self._mpi.Exception) as error:
            self.leave()
            raise base.LostError(self._heartbeat.lost or self._heartbeat.find_lost(), str(error)) from error

    def leave(self, exit_code: int = StorageError.exit_code) -> None:
        """Makes this process end without MPI_Finalize, which would wait for lost processes, with that exit code."""
        leave(exit_code)

    def close(self) -> None:
        """Ends the threads of this ring and of the rings made from it."""
        for inner in self._rings:
            inner.close()
        self._heartbeat.stop()


@contextmanager
def mpi_world(topology: Topology) -> Iterator[MpiRing]:
    """Yields all processes of the MPI job.

    Raises:
        MissingPackageError: mpi4py is not installed.
        LauncherError: MPI does not see the processes that the launcher started.
    """
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:  # mpi4py is missing, or the library of MPI
        raise missing_package("mpi4py", "mpi", "passing data between nodes") from error
    world = MPI.COMM_WORLD
    if (world.rank, world.size) != (topology.rank, topology.world_size):
        raise LauncherError(
            f"MPI sees process {world.rank} of {world.size}, the launcher {topology.launcher} says "
            f"{topology.rank} of {topology.world_size}: start with mpiexec, or with an srun --mpi that this MPI "
            "understands"
        )
    everyone = MpiRing(world)
    try:
        yield everyone
    finally:
        everyone.close()


def leave(exit_code: int) -> None:
    """Makes this process end without MPI_Finalize and with that exit code; no ring is needed."""
    _leaving.append(exit_code)
    atexit.register(_leave, exit_code)


def is_leaving() -> bool:
    """Returns whether this process is to end without MPI_Finalize."""
    return bool(_leaving)


def _leave(exit_code: int) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exit_code)
