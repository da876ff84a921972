"""The rank of this process as the loaders number them, the world size, and the cores that it may use."""

from __future__ import annotations

import os

from dlio.cluster.topology import Topology
from dlio.errors import LauncherError, UsageError
from dlio.io.limits import num_usable_cores

_UNBOUND = "torchrun"  # does not bind ranks to cores


def rank_from_env() -> tuple[int, int]:
    """Returns rank and world size from the launcher's variables.

    Ranks are numbered node by node, whatever numbers the launcher uses, so that the ranks which share a lane are on the
    node that holds it.

    Raises:
        LauncherError: as Topology.from_env.
    """
    job = Topology.from_env()
    if job.node_rank is None or job.num_nodes is None or job.local_rank is None:
        return job.rank, job.world_size
    if job.world_size != (job.local_world_size or 0) * job.num_nodes:
        return job.rank, job.world_size
    return job.node_rank * (job.world_size // job.num_nodes) + job.local_rank, job.world_size


def given_rank(rank: int | None, world_size: int | None) -> tuple[int, int] | None:
    """Returns the two numbers, or None if neither is given.

    Raises:
        UsageError: only one is given.
    """
    if (rank is None) != (world_size is None):
        raise UsageError(f"rank={rank}, world_size={world_size}: give both or neither")
    return None if rank is None or world_size is None else (rank, world_size)


def place_of(rank: int | None, world_size: int | None) -> tuple[int, int]:
    """Returns rank and world size as they are given, else from the launcher's variables; raises as these two do."""
    return given_rank(rank, world_size) or rank_from_env()


def num_cores_of_rank() -> int:
    """Returns the number of cores of this rank, at least 1.

    Ranks that are not bound to cores share those of their node. Ranks count as bound if their affinity masks fit on the
    node without overlap. Ranks of torchrun never do, since it binds none.
    """
    try:
        job = Topology.from_env()
    except LauncherError:  # raised again when the loader asks for its rank
        return num_usable_cores()
    count = job.local_world_size or 1
    overlap = len(os.sched_getaffinity(0)) * count > (os.cpu_count() or 1)
    return max(1, num_usable_cores() // count) if overlap or job.launcher == _UNBOUND else num_usable_cores()
