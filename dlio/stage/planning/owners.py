"""Who reads what from the source, and who keeps what; pure functions of the manifest, the nodes and their room.

The owner of a shard is the node that it is placed on (dlio/stage/planning/placement.py). The shards of lost nodes go to
others by probing: a shard asks one pseudo-random node after the other, until one is there. So when a node is lost, only
its shards move, and when it comes back, only these return.
"""

from __future__ import annotations

import zlib
from collections.abc import Container, Iterable, Iterator, Sequence
from itertools import accumulate, chain, zip_longest

import numpy as np

from dlio.dataset.manifest import File, Manifest
from dlio.stage.planning.placement import assign_first

_PROBES = 64  # then any node that is there, so that one node of thousands is found, too


def owners(sizes: Sequence[int], num_nodes: int) -> list[int]:
    """Returns for each shard, given its bytes, the node that reads it from the source."""
    return assign_first(sizes, num_nodes)


def owner_now(shard: int, owner: int, num_nodes: int, lost: Container[int]) -> int:
    """Returns the node that reads a shard while some nodes are lost.

    Args:
        shard: its number.
        owner: the node that `owners` gives.
        num_nodes: of the job; if all are lost, the owner stays.
        lost: the nodes that are not there; looked up quickly.
    """
    node = owner
    for probe in range(_PROBES):
        if node not in lost:
            return node
        node = zlib.crc32(b"%d %d" % (shard, probe)) % num_nodes
    there = [node for node in range(num_nodes) if node not in lost]
    return there[zlib.crc32(b"%d" % shard) % len(there)] if there else owner


def first_files(manifest: Manifest) -> list[int]:
    """Returns the number of the first file of each shard, then the number of all files."""
    return list(accumulate((len(shard.files) for shard in manifest.shards), initial=0))


def small_files(files: Sequence[File]) -> list[int]:
    """Returns the positions of all files of a shard but its largest, which every node needs to open the shard."""
    largest = max(range(len(files)), key=lambda position: files[position].num_bytes)
    return [position for position in range(len(files)) if position != largest]


def kept_shards(sizes: Sequence[int], owner_of: Sequence[int], node: int, num_nodes: int, room: int) -> list[int]:
    """Returns the shards that a node keeps within this size: its own first, then others.

    The others begin at the node's share of the shards, so that the caches of all nodes together hold as much as they
    can. Nothing is ever put out for something else: an epoch that reads each shard once gains nothing by that.
    """
    kept = []
    for shard in order_alone(owner_of, node, num_nodes):
        if sizes[shard] <= room:
            kept.append(shard)
            room -= sizes[shard]
    return kept


def order_alone(owner_of: Sequence[int], node: int, num_nodes: int) -> list[int]:
    """Returns all shards in the order in which a node fetches them unless a loader has sent another: its own first."""
    is_own = np.array(owner_of, dtype=np.int64) == node
    others = np.flatnonzero(~is_own)
    start = node * len(others) // num_nodes
    order: list[int] = np.concatenate([np.flatnonzero(is_own), others[start:], others[:start]]).tolist()
    return order


def interleaved(orders: Iterable[Sequence[int]], rest: Sequence[int]) -> list[int]:
    """Returns shards in the order of their first use by any rank, the ranks in turn, and then the rest."""
    told: Iterator[int | None] = chain.from_iterable(zip_longest(*orders))
    return list(dict.fromkeys(shard for shard in chain(told, rest) if shard is not None))
