"""Which process of how many this one is, where torch.distributed may know."""

from __future__ import annotations

import torch.distributed

from dlio.errors import LauncherError
from dlio.loaders.sampling.rank import place_from_env


def place_of_process() -> tuple[int, int]:
    """Returns this process's number and the world size, as the launcher tells them.

    An initialised torch.distributed decides where it has another number of ranks, or where the launcher tells none:
    Lightning starts processes of its own that find their rank in Python only.

    Raises:
        LauncherError: as Topology.from_env, without torch.distributed.
    """
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return place_from_env()
    rank, world_size = torch.distributed.get_rank(), torch.distributed.get_world_size()
    try:
        told = place_from_env()
    except LauncherError:
        return rank, world_size
    return told if told[1] == world_size else (rank, world_size)
