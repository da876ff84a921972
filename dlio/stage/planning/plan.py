"""What one node does for one data set: which files it keeps, which pieces it owns, in which order it fetches; pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate, chain, zip_longest

import numpy as np

from dlio.cached import cached_property
from dlio.dataset.manifest import File, Manifest
from dlio.dataset.shard import files_of
from dlio.dataset.tree import fetched, groups_of
from dlio.io.files import Span
from dlio.stage.planning import homes


@dataclass(frozen=True)
class Plan:
    """One node's part.

    Attributes:
        manifest: of the copy; for a partition with the nodes of each shard, and this node.
        node: this node's rank among those that pass files to each other.
        num_nodes: the number of these; 1 if this node reads all from the source.
        room: the bytes that its files may take.
        rooms: those of all nodes, None of one that has not come; empty before this node knows.
        begin: where a node that reads all from the source begins, as a share of the shards.
    """

    manifest: Manifest
    node: int = 0
    num_nodes: int = 1
    room: int = 1 << 62
    rooms: tuple[int | None, ...] = ()
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

    def count(self, listed: Iterable[File]) -> int:
        """Returns how many files some of `listed` are."""
        return sum(len(self.groups.get(file.name, (file,))) for file in listed)

    @cached_property
    def _firsts(self) -> list[int]:
        return list(accumulate(map(len, self._fetched), initial=0))

    @cached_property
    def _sizes(self) -> list[int]:
        return [shard.num_bytes for shard in self.manifest.shards]

    @property
    def knows_rooms(self) -> bool:
        """Whether the rooms of the nodes are known, or do not matter."""
        return bool(self.rooms) or self.num_nodes == 1 or self.manifest.node is not None

    @cached_property
    def is_waiting(self) -> bool:
        """Whether it keeps only what it owns, until it is known what others have no room for."""
        return not self.knows_rooms and self.room < sum(self._sizes)

    @cached_property
    def _short(self) -> frozenset[int]:
        """The nodes that have no room for all."""
        whole = sum(self._sizes)
        return frozenset(node for node, room in enumerate(self.rooms) if room is not None and room < whole)

    @cached_property
    def _large(self) -> list[int]:
        """The shards that are divided among the nodes that have room for all, if there are any."""
        is_shared = self.num_nodes > 1 and self.manifest.node is None
        return homes.divided(self._sizes, self.num_nodes) if is_shared else []

    @cached_property
    def _divided(self) -> list[int]:
        """The shards that are divided."""
        are_all_short = bool(self.rooms) and len(self._short) + self.rooms.count(None) == self.num_nodes
        return [] if are_all_short else self._large

    @cached_property
    def _first_pieces(self) -> dict[int, int]:
        """The number of the first piece of each file of a divided shard, among those of all."""
        numbers = list(self._in_order(self._divided))
        counts = [homes.num_pieces(self.listed[number].num_bytes) for number in numbers]
        return dict(zip(numbers, accumulate(counts, initial=0), strict=False))

    @cached_property
    def home_of(self) -> list[int]:
        """The node of each shard that is not divided which reads it from the source, if no node is lost."""
        return [first if keeper < 0 else keeper for first, keeper in zip(self._first, self._keepers, strict=True)]

    @cached_property
    def _first(self) -> list[int]:
        """The same if all nodes have room."""
        if self.num_nodes == 1:
            return [0] * len(self._sizes)
        sizes = np.array(self._sizes, dtype=np.int64)
        sizes[self._large] = 0
        return homes.assign_first(sizes, self.num_nodes)

    @cached_property
    def _keepers(self) -> list[int]:
        """The home of each shard, which has room for it; -1 if it is divided, or none has."""
        first = np.array(self._first, dtype=np.int64)
        first[self._large] = -1
        found: list[int] = first.tolist()
        return homes.fitted(self._sizes, found, self.rooms, are_divided=self.divides) if self._short else found

    @cached_property
    def kept_shards(self) -> list[int]:
        """The shards that this node keeps."""
        if self.manifest.node is None:
            nodes = self.node, self.num_nodes
            return kept_shards(self._sizes, self._keepers, *nodes, self.room, only_own=self.is_waiting)
        sizes = [self._sizes[shard] for shard in self._here]
        return [self._here[each] for each in kept_shards(sizes, [self.node] * len(sizes), self.node, 1, self.room)]

    @cached_property
    def _here(self) -> list[int]:
        """The shards that a staged copy holds, as `Manifest.shards_here`."""
        own = self.manifest.node
        shards = enumerate(self.manifest.shards)
        return [number for number, each in shards if own is None or not each.nodes or own in each.nodes]

    @cached_property
    def kept(self) -> frozenset[int]:
        """The numbers of the files that this node keeps: those of its shards, and the small files of the others."""
        read = range(len(self._sizes)) if self.num_nodes > 1 else self._here
        kept = set(self.kept_shards)
        others = [shard for shard in read if shard not in kept]
        return frozenset(self._in_order(self.kept_shards)) | frozenset(self._small(others))

    @cached_property
    def is_whole(self) -> bool:
        """Whether the node keeps everything that a staged copy holds."""
        return self.kept.issuperset(self._in_order(self._here))

    @property
    def wanted(self) -> list[File]:
        """The files that a staged copy holds."""
        return files_of(self.manifest.shards_here)

    @property
    def others(self) -> tuple[list[File], int]:
        """The files that this node does not keep, and the bytes that are left for them."""
        kept = sum(self.listed[number].num_bytes for number in self.kept)
        others = [file for number, file in enumerate(self.listed) if number not in self.kept]
        return others, max(0, self.room - kept)

    @property
    def needs_peers(self) -> bool:
        """Whether loaders need an agent though this node's part is complete."""
        return self.manifest.node is not None and self.num_nodes > 1

    def shard_of(self, number: int) -> int:
        """Returns the shard that a file belongs to."""
        return bisect_right(self._firsts, number) - 1

    @property
    def divides(self) -> bool:
        """Whether several nodes read a file."""
        return bool(self._divided)

    def is_divided(self, number: int) -> bool:
        """Returns whether several nodes read a file."""
        return number in self._first_pieces

    def home(self, number: int, is_lost: Callable[[int], bool] = homes.never, begin: int = 0) -> int:
        """Returns the node that reads a file, from a byte on, from the source while some nodes are lost."""
        if self.is_divided(number):
            piece = self._first_pieces[number] + self.piece_of(number, begin)
            is_out = (lambda node: node in self._short or is_lost(node)) if self._short else is_lost
            return homes.home_now(piece, piece % self.num_nodes, self.num_nodes, is_out)
        shard = self.shard_of(number)
        return homes.home_now(shard, self.home_of[shard], self.num_nodes, is_lost)

    def witness(self, number: int, is_lost: Callable[[int], bool]) -> int:
        """Returns the node that this one compares a file with: the one that read it, or of a divided one another.

        It is this node itself if all others are lost.
        """
        if not self.is_divided(number):
            return self.home(number, is_lost)
        found = self.home(number, lambda node: node == self.node or is_lost(node))
        return self.node if is_lost(found) else found

    def piece_of(self, number: int, begin: int) -> int:
        """Returns in which piece of its file a byte lies: the pieces of a divided file have different homes."""
        return begin // homes.PIECE_BYTES if self.is_divided(number) else 0

    def cut(self, number: int, begin: int, end: int) -> Iterator[Span]:
        """Yields a span of a file in parts that have one home each."""
        while self.piece_of(number, begin) < self.piece_of(number, end - 1):
            yield begin, (begin := (begin // homes.PIECE_BYTES + 1) * homes.PIECE_BYTES)
        yield begin, end

    def share(self, number: int, spans: Sequence[Span], *, is_own: bool) -> Iterator[Span]:
        """Returns what of the spans of a file this node owns if no node is lost, or what others do, in its order."""
        if not self.is_divided(number):
            return iter(spans if (self.home(number) == self.node) == is_own else ())
        turns = partial(homes.in_turn, spans, self._first_pieces[number], self.num_nodes, self.node)
        if not self._short:
            return turns(is_own=is_own)
        every = chain(turns(is_own=True), turns(is_own=False))  # those of nodes without room have other homes
        return (span for span in every if (self.home(number, begin=span[0]) == self.node) == is_own)

    def order(self, told: Iterable[Sequence[int]] = ()) -> list[int]:
        """Returns the kept files in the order of the background: all small ones, then by the ranks' first uses."""
        last = len(self._sizes)
        is_alone = self.num_nodes == 1
        rest = list(range(last)) if is_alone else homes.order_alone(self.home_of, self.node, self.num_nodes)
        if self.divides:  # all nodes read one at a time
            rest = list(dict.fromkeys([*self._divided, *rest]))
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


def has_parts(manifest: Manifest) -> bool:
    """Returns whether a copy has only a part of the data set."""
    return any(shard.nodes for shard in manifest.shards)


def partitioned(manifest: Manifest, num_nodes: int, copies: int = 1) -> Manifest:
    """Returns the manifest with each shard's nodes filled in.

    Raises:
        UsageError: there are fewer nodes than copies.
    """
    nodes = homes.assign([shard.num_bytes for shard in manifest.shards], num_nodes, copies)
    shards = (shard.replace(nodes=ranks) for shard, ranks in zip(manifest.shards, nodes, strict=True))
    return replace(manifest, shards=tuple(shards))


def small_files(files: Sequence[File]) -> list[int]:
    """Returns the positions of all files of a shard but its largest, which every node needs to open the shard."""
    sizes = [file.num_bytes for file in files]
    largest = sizes.index(max(sizes))
    return [position for position in range(len(files)) if position != largest]


def kept_shards(
    sizes: Sequence[int], home_of: Sequence[int], node: int, num_nodes: int, room: int, *, only_own: bool = False
) -> list[int]:
    """Returns the shards that a node keeps within this size: its own first, then others, unless it is to wait.

    The others begin at the node's share of the shards, so that the caches of all nodes together hold as much as they
    can. Nothing is ever put out for something else: an epoch that reads each shard once gains nothing by that.
    """
    is_own = np.array(home_of, dtype=np.int64) == node
    others = np.flatnonzero(~is_own)[: 0 if only_own else None]
    start = node * len(others) // num_nodes
    kept = []
    for shard in np.concatenate([np.flatnonzero(is_own), others[start:], others[:start]]).tolist():
        if sizes[shard] <= room:
            kept.append(shard)
            room -= sizes[shard]
    return kept


def interleaved(orders: Iterable[Sequence[int]], rest: Sequence[int]) -> list[int]:
    """Returns shards in the order of their first use by any rank, the ranks in turn, and then the rest."""
    told: Iterator[int | None] = chain.from_iterable(zip_longest(*orders))
    return list(dict.fromkeys(shard for shard in chain(told, rest) if shard is not None))
