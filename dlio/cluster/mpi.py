"""MPI, where its own launcher started the processes: they agree by it, before the work begins.

    gather   all processes at once, once for each thing to agree on, such as the machine for `auto`
    end      MPI ends before the first byte is copied, so that nobody waits in MPI_Finalize for a process that is lost

What a process sends is marked with what it is for. One that has failed, or is done, takes part in the others' rounds
with the mark `end` until all have come so far. So no process waits for one that does not come any more.

MPI's own waiting would use a whole core, and would never end if a process is dead; so requests are polled.
"""

from __future__ import annotations

import atexit
import faulthandler
import importlib.util
import json
import logging
import os
import signal
import sys
import time
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

from dlio.cluster import liveness
from dlio.cluster.topology import Topology
from dlio.errors import EXIT_INTERRUPTED, StorageError

if TYPE_CHECKING:
    from mpi4py import MPI

# Under srun, an MPI that does not understand srun's --mpi kills the job when it is imported. So it is not tried there.
_LAUNCHERS = {"hydra", "openmpi", "mvapich2", "pals", "jsrun"}
_FIRST_POLL_SECONDS, _LAST_POLL_SECONDS = 5e-5, 5e-3
_END = "end"

_log = logging.getLogger(__name__)
_leaving: list[int] = []  # the exit code, once this process is to end without MPI_Finalize


class Processes:
    """All processes that MPI's launcher started; for the thread that made it.

    Attributes:
        is_over: MPI has ended.
        ends_early: MPI ends once nothing is left to agree on; else when this process does, as in a trainer's script.
    """

    def __init__(self) -> None:
        from mpi4py import MPI

        self._mpi = MPI
        self._world: MPI.Comm = MPI.COMM_WORLD
        self.rank, self.size = int(self._world.Get_rank()), int(self._world.Get_size())
        self.is_over = self.ends_early = False

    def gather(self, kind: str, value: object) -> list[Any]:
        """Returns the JSON values of all processes, by rank; None of a process that takes no part in this.

        Raises:
            StorageError: not all processes come, or MPI fails; this process will end without MPI_Finalize.
        """
        told = json.dumps([kind, value]).encode()
        mine, lengths = array("i", [len(told)]), array("i", [0] * self.size)
        self._wait_for(lambda: self._world.Iallgather(mine, lengths))
        ends = list(accumulate(lengths, initial=0))
        heard = bytearray(ends[-1])
        self._wait_for(lambda: self._world.Iallgatherv(told, [heard, list(lengths)]))
        found = [json.loads(heard[start:end]) for start, end in pairwise(ends)]
        return [each if of == kind else None for of, each in found]

    def _wait_for(self, begin: Callable[[], MPI.Request]) -> None:
        began, pause = time.monotonic(), _FIRST_POLL_SECONDS
        try:
            request = begin()
            while not request.Test():
                if time.monotonic() - began > liveness.ARRIVAL_SECONDS:
                    raise TimeoutError(f"not all started within {liveness.ARRIVAL_SECONDS:g} s")
                time.sleep(pause)
                pause = min(1.5 * pause, _LAST_POLL_SECONDS)
        except (TimeoutError, self._mpi.Exception) as error:
            leave(StorageError.exit_code)
            raise StorageError(
                f"some of the {self.size} processes that MPI started were lost: {error}. Stage again to continue"
            ) from error

    def end(self) -> None:
        """Ends MPI once all processes have come so far; one that is lost is not waited for.

        Raises:
            StorageError: as `gather`.
        """
        if self.is_over or _leaving:
            return
        while None in self.gather(_END, True):
            pass
        with open(os.devnull, "w") as nowhere:  # noqa: PTH123
            faulthandler.dump_traceback_later(liveness.LOST_SECONDS, exit=True, file=nowhere)  # needs no Python to run
            self._mpi.Finalize()
            faulthandler.cancel_dump_traceback_later()
        self.is_over = True


def can_agree(topology: Topology) -> bool:
    """Returns whether all processes surely come to agree: those that MPI's own launchers start do.

    A training script under torchrun may stage from one process of each node; waiting for the others would not end.
    """
    launched = topology.world_size > 1 and topology.launcher in _LAUNCHERS
    return launched and importlib.util.find_spec("mpi4py") is not None


def processes(topology: Topology) -> Processes | None:
    """Returns all processes if they can agree by MPI; None if MPI is not there, has ended, or sees others than these.

    It is called before any process may fail, since MPI's start waits for all.
    """
    if not can_agree(topology):
        return None
    try:
        found = _processes()
    except (ImportError, RuntimeError) as error:  # mpi4py is installed, and MPI's library is not
        _log.info("MPI does not start: %s", error)
        return None
    sees_all = (found.rank, found.size) == (topology.rank, topology.world_size)
    return found if sees_all and not found.is_over else None


@cache
def _processes() -> Processes:
    return Processes()


@contextmanager
def ending_early(topology: Topology) -> Iterator[None]:
    """Starts MPI where processes can agree by it, and ends it when they have, or at the end of this context.

    Raises:
        StorageError: other processes are lost, and the work itself raised nothing.
    """
    found = processes(topology)
    if found is None:
        yield
        return
    found.ends_early = True
    try:
        try:
            yield
        except Exception as error:
            try:
                found.end()
            except StorageError as lost:
                leave(getattr(error, "exit_code", 1))
                _log.warning("%s", lost)
            raise
        found.end()
    except KeyboardInterrupt:
        if not found.is_over:
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # mpiexec sends more than one
            leave(EXIT_INTERRUPTED)
        raise


def agreed() -> None:
    """Notes that nothing is left to agree on, if the processes have agreed by MPI at all; raises as `Processes.end`."""
    if _processes.cache_info().currsize and _processes().ends_early:
        _processes().end()


def leave(exit_code: int) -> None:
    """Makes this process end without MPI_Finalize, which would wait for lost processes, and with that exit code."""
    _leaving.append(exit_code)
    atexit.register(_leave, exit_code)


def _leave(exit_code: int) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exit_code)
