"""MPI, where its own launcher started the processes: they agree by it, and introduce their nodes to each other.

    gather   all processes at once, once for each thing to agree on: the machine for `auto`, then the nodes' addresses
    end      MPI ends before the first byte is copied, so that nobody waits in MPI_Finalize for a process that is lost

What a process sends is marked with what it is for. One that has failed, or is done, takes part in the others' rounds
with the mark `end` until all have come so far. So no process waits for one that does not come any more. Bytes and
further words pass over the connections of protocol/tcp.py, and no shared folder is needed.

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
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

from dlio.cluster import liveness
from dlio.cluster.topology import Topology
from dlio.errors import EXIT_INTERRUPTED, StorageError
from dlio.io import world
from dlio.locking.owner import Owner, node_id
from dlio.stage.meeting.peer import Peer
from dlio.stage.protocol.tcp import TOKEN_BYTES, TcpListener, listening_at

if TYPE_CHECKING:
    from mpi4py import MPI

# Under srun, an MPI that does not understand srun's --mpi kills the job when it is imported. So it is not tried there.
_LAUNCHERS = {"hydra", "openmpi", "mvapich2", "pals", "jsrun"}
_FIRST_POLL_SECONDS, _LAST_POLL_SECONDS = 5e-5, 5e-3
_END = "end"

_log = logging.getLogger(__name__)
_leaving: list[int] = []  # the exit code, once this process is to end without MPI_Finalize


class Introduced:
    """The nodes that know each other from the start, as those that MPI has introduced do; used as a `MeetingFolder`.

    Args:
        token: the job's.
        peers: all nodes, by rank.
        listener: this node's.
    """

    is_joined_by_others = False

    def __init__(self, token: bytes, peers: Sequence[Peer], listener: TcpListener) -> None:
        self.token, self._peers, self._listener, self._is_heard = token, peers, listener, False

    def listener(self, content: str) -> TcpListener:
        """Returns where this node listens."""
        self._is_heard = True
        return self._listener

    def tell(self, peer: Peer) -> bool:
        """Does nothing: all know how this node is reached."""
        return True

    def find(self, node: int) -> Peer:
        """Returns how a node is reached."""
        return self._peers[node]

    def may_be_old(self, node: int) -> bool:
        """Returns False: all have come."""
        return False

    def leave(self, last: Peer | None) -> None:
        """Has the others find nobody at this node's address."""
        if not self._is_heard:
            self._listener.listening.close()


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


def introduced(everyone: Processes, topology: Topology, content: str) -> tuple[Topology, Introduced | None]:
    """Returns the topology with the nodes numbered as their machines are, and where this node meets the others.

    Every process calls it. The first process of each machine is to fill its copy; the others have no place, and one
    that fills the copy in its stead reads all from the source.

    Raises:
        StorageError: as `Processes.gather`, or this node cannot listen.
    """
    listening = listening_at(world.address())
    own = Peer(0, listening.getsockname()[:2], Owner.current(), False, 0, 0)
    try:
        found = everyone.gather(f"meet {content}", [node_id(), own.to_json(), os.urandom(TOKEN_BYTES).hex()])
        agreed()
        machines = [each[0] if each else "" for each in found]
        found_out = topology.numbered(machines)
    except BaseException:
        listening.close()
        raise
    if found_out.local_rank or found_out.num_nodes == 1:
        listening.close()
        return replace(found_out, node_rank=0, num_nodes=1), None
    leaders = [found[machines.index(name)] for name in dict.fromkeys(filter(None, machines))]
    token = bytes.fromhex(leaders[0][2])
    peers = [Peer.from_json(node, record | {"node": node}) for node, (_, record, _) in enumerate(leaders)]
    return found_out, Introduced(token, peers, TcpListener(listening, token, content))
