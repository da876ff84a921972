"""What one node does for one data set: which files it keeps, which it owns, in which order it fetches them; pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate

from dlio.cached import cached_property
from dlio.dataset.manifest import File, Manifest
from dlio.dataset.shard import files_of
from dlio.dataset.tree import fetched, groups_of
from dlio.stage.planning.placement import (
    assign_first,
    interleaved,
    kept_shards,
    order_alone,
    owner_now,
    small_files,
)


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
