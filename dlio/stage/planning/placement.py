"""Placement: which node holds which shard. Pure, so a thousand nodes can be planned for on a laptop."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import replace

from dlio.cluster.topology import Topology
from dlio.dataset.manifest import File, Manifest, Shard
from dlio.errors import UsageError

BLOCK_BYTES = 4 << 20  # what is copied, and passed from node to node, at a time


def place(sizes: Sequence[int], num_nodes: int, copies: int = 1) -> list[tuple[int, ...]]:
    """Returns the node ranks of each shard, so that the nodes hold about the same number of bytes.

    The largest shard goes to the emptiest node, then the next one ("longest processing time first", Graham 1969: the
    fullest node holds at most 4/3 of the best possible). The first rank of a shard is the node whose part it belongs
    to; further copies lie on the nodes after it.

    Raises:
        UsageError: there are fewer nodes than copies.
    """
    check_copies(copies, num_nodes)
    held = list(range(num_nodes))  # each node's bytes times num_nodes, plus its rank: integers compare fastest
    placed: list[tuple[int, ...]] = [()] * len(sizes)
    rings = [tuple((node + step) % num_nodes for step in range(copies)) for node in range(num_nodes)]
    for shard in sorted(range(len(sizes)), key=sizes.__getitem__, reverse=True):
        placed[shard] = rings[held[0] % num_nodes]
        heapq.heapreplace(held, held[0] + sizes[shard] * num_nodes)
    return placed


def numbered(topology: Topology) -> tuple[int, int]:
    """Returns this node's rank and the number of nodes.

    Raises:
        UsageError: the launcher numbers no nodes.
    """
    if topology.node_rank is None or topology.num_nodes is None:
        raise UsageError(
            f"the strategy partition needs the nodes' numbers, and the launcher {topology.launcher} tells none: "
            "start one process per node with srun, or give the topology"
        )
    return topology.node_rank, topology.num_nodes


def part(content_id: str, node_rank: int, num_nodes: int, copies: int) -> str:
    """Returns the name of a node's part of a data set, which is not the whole.

    Raises:
        UsageError: there are fewer nodes than copies.
    """
    check_copies(copies, num_nodes)
    return f"{content_id}.{node_rank}of{num_nodes}x{copies}"


def check_copies(copies: int, num_nodes: int) -> None:
    """Raises UsageError where there are fewer nodes than copies."""
    if not 1 <= copies <= num_nodes:
        raise UsageError(f"{copies} copies on {num_nodes} nodes: give from 1 to {num_nodes} copies")


def partitioned(manifest: Manifest, num_nodes: int, copies: int = 1) -> Manifest:
    """Returns the manifest with each shard's nodes filled in.

    Raises:
        UsageError: there are fewer nodes than copies.
    """
    nodes = place([shard.num_bytes for shard in manifest.shards], num_nodes, copies)
    shards = (shard._replace(nodes=ranks) for shard, ranks in zip(manifest.shards, nodes, strict=True))
    return replace(manifest, shards=tuple(shards))


def files_on(shards: Sequence[Shard], node_rank: int) -> list[File]:
    """Returns the files that a partitioned manifest places on a node."""
    return [file for shard in shards if node_rank in shard.nodes for file in shard.files]


def rotated(files: Sequence[File], share: float) -> list[File]:
    """Returns the files beginning at the given share, from 0 up to 1, of their number."""
    start = int(share * len(files))
    return [*files[start:], *files[:start]]
