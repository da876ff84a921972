"""Placement: which node holds which shard; pure."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from dlio.dataset.manifest import File, Manifest, Shard
from dlio.errors import UsageError

BLOCK_BYTES = 4 << 20  # copied, and passed from node to node, at a time


def assign(sizes: Sequence[int], num_nodes: int, copies: int = 1) -> list[tuple[int, ...]]:
    """Returns the node ranks of each shard, so that the nodes hold about the same number of bytes.

    Each shard goes to the emptiest node, the largest shard first ("longest processing time first", Graham 1969: the
    fullest node holds at most 4/3 of the best possible). The first rank is that node; further copies go to the nodes
    after it.

    Raises:
        UsageError: there are fewer nodes than copies.
    """
    check_copies(copies, num_nodes)
    rings = [tuple((node + step) % num_nodes for step in range(copies)) for node in range(num_nodes)]
    return [rings[first] for first in assign_first(sizes, num_nodes)]


def assign_first(sizes: Sequence[int], num_nodes: int) -> list[int]:
    """Returns the first of the node ranks that `assign` gives each shard."""
    held = list(range(num_nodes))  # each node's bytes times num_nodes, plus its rank: integers compare fastest
    all_sizes = np.array(sizes, dtype=np.int64)
    largest_first = np.argsort(-all_sizes, kind="stable")
    found = []
    for size in all_sizes[largest_first].tolist():
        found.append(held[0] % num_nodes)
        heapq.heapreplace(held, held[0] + size * num_nodes)
    assigned = np.empty(len(found), dtype=np.int64)
    assigned[largest_first] = found
    first: list[int] = assigned.tolist()
    return first


def check_copies(copies: int, num_nodes: int) -> None:
    """Raises UsageError if there are fewer nodes than copies."""
    if not 1 <= copies <= num_nodes:
        raise UsageError(f"{copies} copies on {num_nodes} nodes: give from 1 to {num_nodes} copies")


def has_parts(manifest: Manifest) -> bool:
    """Returns whether a copy has only a part of the data set."""
    return any(shard.nodes for shard in manifest.shards)


def partitioned(manifest: Manifest, num_nodes: int, copies: int = 1) -> Manifest:
    """Returns the manifest with each shard's nodes filled in.

    Raises:
        UsageError: there are fewer nodes than copies.
    """
    nodes = assign([shard.num_bytes for shard in manifest.shards], num_nodes, copies)
    shards = (shard.replace(nodes=ranks) for shard, ranks in zip(manifest.shards, nodes, strict=True))
    return replace(manifest, shards=tuple(shards))


def files_on(shards: Sequence[Shard], node_rank: int) -> list[File]:
    """Returns the files that a partitioned manifest assigns to a node."""
    return [file for shard in shards if node_rank in shard.nodes for file in shard.files]


def rotated(files: Sequence[File], share: float) -> list[File]:
    """Returns the files in order, rotated to begin at `share` (from 0 to below 1) of their number."""
    start = int(share * len(files))
    return [*files[start:], *files[:start]]
