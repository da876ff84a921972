"""What one node does for one data set: which files it keeps, which it owns, in which order it fetches them; pure.

The owner of a shard, which reads it from the source, is the first node that it is placed on. The shards of lost nodes
go to others by probing: a shard asks one pseudo-random node after the other, until one is present. So when a node is
lost, only its shards move, and when it comes back, only these return.
"""

from __future__ import annotations

import heapq
import zlib
from bisect import bisect_right
from collections.abc import Collection, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, chain, zip_longest

import numpy as np

from dlio.cached import cached_property
from dlio.dataset.manifest import File, Manifest
from dlio.dataset.shard import files_of
from dlio.dataset.tree import fetched, groups_of
from dlio.errors import UsageError

BLOCK_BYTES = 4 << 20  # copied, and passed from node to node, at a time
_PROBES = 64  # for an owner; then any node that is present, so that one node of thousands is found, too


@dataclass(frozen=True)
class Plan:
    """One node's part.

    Attributes:
        manifest: of the copy; for a partition with the nodes of each shard, and this node.
        node: this node's rank among those that pass files to each other.
        num_nodes: the number of these; 1 if this node reads all from the source.
        room: the bytes that its files may take.
        begin: where a node that reads all from the source begins, as a share of the shards.
    """

    manifest: Manifest
    node: int = 0
    num_nodes: int = 1
    room: int = field(default=1 << 62)
    begin: float = 0.0

    def among(self, node: int, num_nodes: int) -> Plan:
        """Returns the plan for nodes that pass files to each other, so that each is read from the source once.

        Agents do so whatever the strategy; a strategy whose nodes exchange files anyway has said it already.
        """
        is_said = self.num_nodes > 1 or num_nodes == 1
        return self if is_said else replace(self, node=node, num_nodes=num_nodes, begin=0.0)

    @cached_property
    def _fetched(self) -> list[tuple[File, ...]]:
        return fetched(self.manifest)

    @cached_property
    def listed(self) -> list[File]:
        """All that is fetched, by its numbers: the files of the data set, or groups of them."""
        return [file for shard in self._fetched for file in shard]

    @cached_property
    def groups(self) -> dict[str, tuple[File, ...]]:
        """The files of each group, by its name in `listed`."""
        return groups_of(self.manifest)

    @cached_property
    def _firsts(self) -> list[int]:
        return list(accumulate(map(len, self._fetched), initial=0))

    @cached_property
    def _sizes(self) -> list[int]:
        return [shard.num_bytes for shard in self.manifest.shards]

    @cached_property
    def owner_of(self) -> list[int]:
        """The node of each shard that reads it from the source, if no node is lost."""
        return assign_first(self._sizes, self.num_nodes)

    @cached_property
    def kept_shards(self) -> list[int]:
        """The shards that this node keeps."""
        if self.manifest.node is None:
            return kept_shards(self._sizes, self.owner_of, self.node, self.num_nodes, self.room)
        here = [shard for shard, each in enumerate(self.manifest.shards) if self.manifest.node in each.nodes]
        sizes = [self._sizes[shard] for shard in here]
        return [here[each] for each in kept_shards(sizes, [self.node] * len(here), self.node, 1, self.room)]

    @cached_property
    def kept(self) -> frozenset[int]:
        """The numbers of the files that this node keeps: those of its shards, and the small files of the others."""
        read = range(len(self._sizes)) if self.num_nodes > 1 else self._numbers(self.manifest.shards_here)
        kept = set(self.kept_shards)
        others = [shard for shard in read if shard not in kept]
        return frozenset(self._in_order(self.kept_shards)) | frozenset(self._small(others))

    @cached_property
    def is_whole(self) -> bool:
        """Whether the node keeps everything that a staged copy holds."""
        return self.kept.issuperset(self.numbers_of(self.manifest.shards_here))

    @property
    def wanted(self) -> list[File]:
        """The files that a staged copy holds."""
        return files_of(self.manifest.shards_here)

    @property
    def needs_peers(self) -> bool:
        """Whether loaders need an agent though this node's part is complete."""
        return self.manifest.node is not None and self.num_nodes > 1

    def numbers_of(self, shards: Collection[object]) -> list[int]:
        """Returns the numbers of the files of shards of the manifest."""
        return list(self._in_order(self._numbers(shards)))

    def _numbers(self, shards: Collection[object]) -> list[int]:
        chosen = set(map(id, shards))
        return [number for number, shard in enumerate(self.manifest.shards) if id(shard) in chosen]

    def shard_of(self, number: int) -> int:
        """Returns the shard that a file belongs to."""
        return bisect_right(self._firsts, number) - 1

    def owner(self, number: int, lost: Container[int] = ()) -> int:
        """Returns the node that reads a file from the source while some nodes are lost."""
        shard = self.shard_of(number)
        return owner_now(shard, self.owner_of[shard], self.num_nodes, lost)

    def order(self, told: Iterable[Sequence[int]] = ()) -> list[int]:
        """Returns the kept files in the order of the background: all small ones, then by the ranks' first uses."""
        last = len(self._sizes)
        rest = order_alone(self.owner_of, self.node, self.num_nodes)
        start = int(self.begin * len(rest))
        rest = [*rest[start:], *rest[:start]]
        shards = interleaved(([shard for shard in each if 0 <= shard < last] for each in told), rest)
        numbers = dict.fromkeys([*self._small(shards), *self._in_order(shards)])
        return [number for number in numbers if number in self.kept]

    def _in_order(self, shards: Iterable[int]) -> Iterator[int]:
        for shard in shards:
            yield from range(self._firsts[shard], self._firsts[shard + 1])

    def _small(self, shards: Iterable[int]) -> Iterator[int]:
        for shard in shards:
            files = self._fetched[shard]
            yield from (self._firsts[shard] + position for position in (small_files(files) if files else ()))


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
    """Returns the first of the node ranks that `assign` gives each shard, which reads it from the source."""
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


def owner_now(shard: int, owner: int, num_nodes: int, lost: Container[int]) -> int:
    """Returns the node that reads a shard while some nodes are lost.

    Args:
        shard: its number.
        owner: the node that `assign_first` gives.
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


def small_files(files: Sequence[File]) -> list[int]:
    """Returns the positions of all files of a shard but its largest, which every node needs to open the shard."""
    sizes = [file.num_bytes for file in files]
    largest = sizes.index(max(sizes))
    return [position for position in range(len(files)) if position != largest]


def kept_shards(sizes: Sequence[int], owner_of: Sequence[int], node: int, num_nodes: int, room: int) -> list[int]:
    """Returns the shards that a node keeps within this size: its own first, then others.

    The others begin at the node's share of the shards, so that the caches of all nodes together hold as much as they
    can. Nothing is ever put out for something else: an epoch that reads each shard once gains nothing by that.
    """
    is_own = np.array(owner_of, dtype=np.int64) == node
    others = np.flatnonzero(~is_own)
    start = node * len(others) // num_nodes
    kept = []
    for shard in np.concatenate([np.flatnonzero(is_own), others[start:], others[:start]]).tolist():
        if sizes[shard] <= room:
            kept.append(shard)
            room -= sizes[shard]
    return kept


def order_alone(owner_of: Sequence[int], node: int, num_nodes: int) -> list[int]:
    """Returns all shards in the order in which a node fetches them unless a loader has sent another: its own first.

    Then the first shard of each other owner, the second of each, and so on, from the next node on. So all ask an owner
    for what it reads then, or has read: each read of the source serves all that wait, and no two ask in the same order.
    """
    owners = np.array(owner_of, dtype=np.int64)
    by_owner = np.argsort(owners, kind="stable")
    counts = np.bincount(owners, minlength=num_nodes)
    turns = np.empty_like(owners)  # of each shard among those of its owner
    turns[by_owner] = np.arange(len(owners)) - np.repeat(np.cumsum(counts) - counts, counts)
    order = np.lexsort(((owners - node) % num_nodes, np.where(owners == node, -1, turns)))
    found: list[int] = order.tolist()
    return found


def interleaved(orders: Iterable[Sequence[int]], rest: Sequence[int]) -> list[int]:
    """Returns shards in the order of their first use by any rank, the ranks in turn, and then the rest."""
    told: Iterator[int | None] = chain.from_iterable(zip_longest(*orders))
    return list(dict.fromkeys(shard for shard in chain(told, rest) if shard is not None))
