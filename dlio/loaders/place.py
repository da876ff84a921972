"""Which process of how many this one is, in the order in which the loaders number them."""

from __future__ import annotations

from dlio.topology import Topology


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
