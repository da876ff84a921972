"""The choice of how the processes of a job connect.

MPI is used where MPI's launcher started them. Where they know each other by MASTER_ADDR and MASTER_PORT only, as under
torchrun, it is torch's store and gloo.
"""

from __future__ import annotations

import importlib.util
import logging
import os
from contextlib import AbstractContextManager

from dlio.cluster.topology import Topology
from dlio.stage.comm.base import Ring
from dlio.stage.comm.gloo import agent_serves, torch_world
from dlio.stage.comm.mpi import mpi_world
from dlio.stage.comm.mpi_progress import make_channel

# Under srun, an MPI that does not understand srun's --mpi kills the job when it is imported. So it is not tried there
# unless the strategy needs it.
_MPI_LAUNCHERS = {"hydra", "openmpi", "mvapich2", "pals", "jsrun"}
_PMI_VARIABLES = ("PMI_RANK", "PMIX_RANK")  # srun --mpi=pmi2, =pmix
_TORCH_LAUNCHERS = {"torchrun", "pytorchjob", "env"}
_log = logging.getLogger(__name__)


def world(topology: Topology) -> AbstractContextManager[Ring]:
    """Returns a context in which all processes of the job are a ring; all enter and leave it.

    Raises:
        MissingPackageError: mpi4py, or torch, is not installed.
        LauncherError: the processes that the launcher started do not find each other.
        LostError: a process is lost.
    """
    return torch_world(topology) if meets_at_master(topology) else mpi_world(topology)


def can_exchange(topology: Topology) -> bool:
    """Returns whether all processes surely enter a `world`: those that MPI's own launchers start do.

    A training script under torchrun may stage from one process of each node; waiting for the others would not end.
    """
    launched = topology.world_size > 1 and topology.launcher in _MPI_LAUNCHERS
    return launched and importlib.util.find_spec("mpi4py") is not None


def start_together(topology: Topology, *, to_exchange: bool = False) -> None:
    """Starts MPI if `can_exchange`, or if data is to be exchanged and MPI carries it.

    It is called before any process may fail, since MPI's start waits for all. An MPI that does not start is an error
    only for a strategy that needs it.
    """
    needed = to_exchange and topology.world_size > 1 and not meets_at_master(topology)
    if can_exchange(topology) or needed:
        try:
            make_channel(topology)
        except (ImportError, RuntimeError) as error:  # mpi4py is installed, and MPI's library is not
            _log.info("MPI does not start: %s", error)


def has_agent_store(topology: Topology) -> bool:
    """Returns whether torchrun's agent serves a store at MASTER_ADDR and MASTER_PORT already.

    Under other launchers the port may be meant for a later training, which has to find it free.
    """
    return agent_serves() and topology.launcher == "torchrun" and meets_at_master(topology)


def meets_at_master(topology: Topology) -> bool:
    """Returns whether the processes know each other by MASTER_ADDR and MASTER_PORT."""
    if not (os.environ.get("MASTER_ADDR") and os.environ.get("MASTER_PORT")):
        return False
    under_srun = topology.launcher == "slurm" and not any(name in os.environ for name in _PMI_VARIABLES)
    return under_srun or topology.launcher in _TORCH_LAUNCHERS
