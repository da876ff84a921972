"""Words that processes leave for rank 0 as messages of MPI; `dlio.stage.board.Board` says what the methods do.

Rank 0 may look at none of them, and MPI refuses to end while messages wait. MPI's end also waits for all processes, for
ever if one is lost. So a process ends MPI itself, within `parting`: it says how many words it has sent, waits for the
others as long as they live, and rank 0 receives the rest.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from dlio.errors import EXIT_INTERRUPTED, StorageError
from dlio.topology import Topology

_WORD_TAG = 3
_log = logging.getLogger(__name__)


class MpiBoard:
    """This process's part, for one thread at a time."""

    def __init__(self) -> None:
        from mpi4py import MPI

        from dlio.stage import ring
        from dlio.stage.ring_mpi import MpiRing

        self._mpi: Any = MPI
        self._world = MPI.COMM_WORLD
        self._words: dict[int, str] = {}
        self._under_way: list[tuple[Any, bytes]] = []  # kept, since MPI reads their memory
        self._sent = self._received = 0
        self._everyone = MpiRing(self._world.Dup(), float("inf"), ring.LOST_SECONDS)
        self._hosts = self._everyone.gather(socket.gethostname())

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

    def part(self) -> None:
        """Ends MPI once all have come so far; if one is lost even after that, this process ends with the exit code 1.

        Raises:
            StorageError: processes are lost, and on which hosts; MPI is not ended, nor waited for any more.
        """
        from dlio.stage import ring

        try:
            all_sent = sum(self._everyone.gather(self._sent))
        except ring.LostError as error:
            names = ", ".join(self._hosts[rank] for rank in error.ranks) or "unknown"
            raise StorageError(f"lost while others staged or waited for it: {names} ({error})") from error
        with open(os.devnull, "w") as nowhere:  # noqa: PTH123
            faulthandler.dump_traceback_later(ring.LOST_SECONDS, exit=True, file=nowhere)  # it needs no Python to run
            while self._world.rank == 0 and self._received < all_sent:
                self._receive()
            self._everyone.close()
            self._mpi.Finalize()
            faulthandler.cancel_dump_traceback_later()

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
    return MpiBoard()


@contextmanager
def parting() -> Iterator[None]:
    """Within it MPI may start; leaving it ends MPI once all others leave it, an interrupt ends this process without.

    Raises:
        StorageError: others are lost, where leaving it was no error already.
    """
    try:
        try:
            yield
        except Exception as error:
            _part(getattr(error, "exit_code", 1))
            raise
        _part()
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # mpiexec sends more than one
        if "mpi4py.MPI" in sys.modules:
            _leave(EXIT_INTERRUPTED)
        raise


def _part(failed_with: int | None = None) -> None:
    from dlio.stage.ring_mpi import is_leaving

    board = the_board()
    if board is None or is_leaving():
        return
    try:
        board.part()
    except StorageError as error:
        if failed_with is None:
            raise
        _leave(failed_with)
        _log.warning("%s", error)


def _leave(exit_code: int) -> None:
    from dlio.stage.ring_mpi import leave

    leave(exit_code)
