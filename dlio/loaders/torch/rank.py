"""Rank and world size of this process, from the launcher or torch.distributed."""

from __future__ import annotations

import torch.distributed

from dlio.errors import LauncherError
from dlio.loaders.sampling.rank import rank_from_env


def rank_of_process() -> tuple[int, int]:
    """Returns rank and world size of this process from the launcher's variables.

    An initialised torch.distributed overrides them if it has another number of ranks or the launcher set none:
    Lightning starts processes whose rank is known in Python only.

    Raises:
        LauncherError: as Topology.from_env, without torch.distributed.
    """
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return rank_from_env()
    rank, world_size = torch.distributed.get_rank(), torch.distributed.get_world_size()
    try:
        launched = rank_from_env()
    except LauncherError:
        return rank, world_size
    return launched if launched[1] == world_size else (rank, world_size)
