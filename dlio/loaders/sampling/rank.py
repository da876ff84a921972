"""Which process of how many this one is, in the order in which the loaders number them, and which cores it may use."""

from __future__ import annotations

import os

from dlio.cluster.cpu_count import num_usable_cores
from dlio.cluster.topology import Topology
from dlio.errors import LauncherError, UsageError

_UNBOUND = "torchrun"  # starts ranks that all keep its own affinity mask


def place_from_env() -> tuple[int, int]:
    """Returns this process's number and the world size as the launcher tells them.

    Processes are numbered node by node, whatever ranks the launcher gave them, so that the ranks which share a lane
    are on the node that holds it.

    Raises:
        LauncherError: as Topology.from_env.
    """
    place = Topology.from_env()
    if place.node_rank is None or place.num_nodes is None or place.local_rank is None:
        return place.rank, place.world_size
    if place.world_size != (place.local_world_size or 0) * place.num_nodes:
        return place.rank, place.world_size
    return place.node_rank * (place.world_size // place.num_nodes) + place.local_rank, place.world_size


def given_place(rank: int | None, world_size: int | None) -> tuple[int, int] | None:
    """Returns the two numbers, None where neither is given.

    Raises:
        UsageError: one is given alone.
    """
    if (rank is None) != (world_size is None):
        raise UsageError(f"rank={rank}, world_size={world_size}: give both or neither")
    return None if rank is None or world_size is None else (rank, world_size)


def num_cores_of_rank() -> int:
    """Returns how many cores this rank may use for itself, at least 1.

    Ranks of a node that are not bound to cores of their own divide what they may all use. They count as bound where
    their affinity masks could lie side by side on the node, unless torchrun has started them, which binds none.
    """
    try:
        place = Topology.from_env()
    except LauncherError:  # is raised where the loader needs its rank
        return num_usable_cores()
    count = place.local_world_size or 1
    overlap = len(os.sched_getaffinity(0)) * count > (os.cpu_count() or 1)
    return max(1, num_usable_cores() // count) if overlap or place.launcher == _UNBOUND else num_usable_cores()
