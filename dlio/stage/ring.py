"""A ring of processes that pass blocks on to their right neighbour, and notice when one is lost.

There are two: over MPI (ring_mpi.py), and over torch.distributed's gloo (ring_gloo.py) where processes know each other
by MASTER_ADDR and MASTER_PORT only, as those of torchrun do.
"""

from __future__ import annotations

import importlib.util
import logging
import os
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from dlio.errors import StorageError
from dlio.stage.mpi_board import make_board
from dlio.topology import Topology

LOST_SECONDS = 20.0  # a block of 4 MiB takes milliseconds; a node that is silent for so long does not come back
ROLL_CALL_SECONDS = 3.0
ARRIVAL_SECONDS = 180.0  # for nodes to come at all, with Python loaded from a file system that all ask at once
GATHER_SECONDS = 600.0  # for nodes that live; what one does between two gatherings, such as fsync, takes seconds

# Under srun, an MPI that does not understand srun's --mpi kills the job when it is imported, so there it is not tried
# unless a broadcast is asked for.
_MPI_LAUNCHERS = {"hydra", "openmpi", "mvapich2", "pals", "jsrun"}
_PMI_VARIABLES = ("PMI_RANK", "PMIX_RANK")  # srun --mpi=pmi2, =pmix
_TORCH_LAUNCHERS = {"torchrun", "pytorchjob", "env"}
_log = logging.getLogger(__name__)


class Ring(Protocol):
    """Some of the processes of a job, in a circle; only the thread that made a ring may use it.

    Attributes:
        rank: this process's place.
        size: the number of places.
    """

    rank: int
    size: int

    def gather(self, value: Any) -> list[Any]:
        """Returns the values of all processes, by place; every process calls it. Values are what JSON can say.

        Raises:
            LostError: as `shift` says, or a process did not come within `ARRIVAL_SECONDS` (of MPI, which starts all
                together, within `GATHER_SECONDS`).
        """

    def among(self, ranks: Sequence[int]) -> Ring | None:
        """Returns the ring of the processes at these places, None for one that is not among them; all call it."""

    def shift(self, send: bytearray, receive: bytearray) -> None:
        """Sends one block to the right and receives one of the same size from the left.

        Raises:
            LostError: a process is lost; all others learn which. The ring must not be used any more.
        """

    def leave(self, exit_code: int = StorageError.exit_code) -> None:
        """Makes this process end without waiting for the others, and with that exit code if it must be cut short."""


class LostError(StorageError):
    """Processes of a ring do not answer any more.

    Attributes:
        ranks: their places.
    """

    def __init__(self, ranks: Sequence[int], problem: str) -> None:
        super().__init__(f"places {list(ranks)} in the ring are lost: {problem}")
        self.ranks = tuple(ranks)


def world(topology: Topology) -> AbstractContextManager[Ring]:
    """Returns a context in which all processes of the job are a ring; all enter and leave it.

    Raises:
        MissingPackageError: mpi4py, or torch, is not installed.
        LauncherError: the processes that the launcher started do not find each other.
        LostError: they do no more.
    """
    if meets_at_master(topology):
        from dlio.stage.ring_gloo import torch_world

        return torch_world(topology)
    from dlio.stage.ring_mpi import mpi_world

    return mpi_world(topology)


def can_exchange(topology: Topology) -> bool:
    """Returns whether the processes surely form a ring without being asked to: those of MPI's own launchers do.

    A training script under torchrun may stage from one process of each node; the others would be waited for.
    """
    launched = topology.world_size > 1 and topology.launcher in _MPI_LAUNCHERS
    return launched and importlib.util.find_spec("mpi4py") is not None


def start_together(topology: Topology, *, to_broadcast: bool = False) -> None:
    """Starts MPI where `can_exchange`, or for a broadcast that needs it; before any process may fail: it waits for all.

    Whoever needs an MPI that does not start says so then; a node that copies for itself does without.
    """
    if can_exchange(topology) or (to_broadcast and topology.world_size > 1 and not meets_at_master(topology)):
        try:
            make_board(topology)
        except (ImportError, RuntimeError) as error:  # mpi4py is there, and the library of MPI is not
            _log.info("MPI does not start: %s", error)


def has_agent_store(topology: Topology) -> bool:
    """Returns whether a store is served already at MASTER_ADDR and MASTER_PORT: by torchrun's agent.

    Elsewhere the two may be set for a training to come, which is to find the port free, or by nobody who answers.
    """
    return agent_serves() and topology.launcher == "torchrun" and meets_at_master(topology)


def agent_serves() -> bool:
    """Returns whether torchrun says that its agent has the store at MASTER_ADDR and MASTER_PORT."""
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


def meets_at_master(topology: Topology) -> bool:
    """Returns whether the processes know each other by MASTER_ADDR and MASTER_PORT."""
    if not (os.environ.get("MASTER_ADDR") and os.environ.get("MASTER_PORT")):
        return False
    under_srun = topology.launcher == "slurm" and not any(name in os.environ for name in _PMI_VARIABLES)
    return under_srun or topology.launcher in _TORCH_LAUNCHERS
