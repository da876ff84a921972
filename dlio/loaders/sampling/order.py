"""The order of samples: pure functions of the shards' sizes, a seed and an epoch.

A lane is a group of shards with its own order. The shards are dealt to L lanes of about equal size, and every
global batch takes the same number of samples from each lane:

    position      0    1    2    3    4    5   ...
    lane 0       17    4   88    9   51    2         samples of the shards {0, 3}
    lane 1      130  101  177  120  199  143         samples of the shards {1, 2}
                \\_____________/
                 a global batch takes the same positions of every lane

Each rank draws from a fixed lane (or from several lanes), so it reads the shards of these lanes only. With L = 1, the
default, there is one order over all shards, and every rank reads all of them. A data set that is staged in parts has
one lane for each part, so that each node reads what it holds. The samples of a global batch depend on L, but not on the
number of ranks or threads, nor on the file format. `dlio.loaders.sampling.rank_share` gives each rank its share.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from heapq import heapify, heapreplace
from itertools import islice
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from dlio.cached import cached_property
from dlio.dataset.manifest import Manifest
from dlio.errors import UsageError
from dlio.random_keys import derive, permute

Indices = npt.NDArray[np.int64]
_STEPS = 64  # whose first uses are looked for together
_MOST_SHARDS = 4096  # the rest comes hours later, in any order


@dataclass(frozen=True, slots=True)
class Window:
    """A shuffle that reads few shards at a time: random order of shards, samples shuffled in groups of `num_shards`.

    Raises:
        UsageError: `num_shards` is below 1.
    """

    num_shards: int

    def __post_init__(self) -> None:
        if not isinstance(self.num_shards, int) or self.num_shards < 1:
            raise UsageError(f"a window of {self.num_shards!r} shards: expected a whole number >= 1")


#: False: as packed. True: an exact shuffle of all samples. Window(w): see `Window`.
Shuffle: TypeAlias = bool | Window


def check_shuffle(shuffle: object) -> None:
    """Checks the type of `shuffle`, since a text such as "no" would count as True.

    Raises:
        UsageError: it is neither a bool nor a Window.
    """
    if not isinstance(shuffle, (bool, Window)):
        raise UsageError(f"shuffle={shuffle!r}: expected True, False or Window(number of shards)")


def distinct(numbers: Indices) -> list[int]:
    """Returns the different numbers, ascending: without `np.unique`, which loads `numpy.ma`, in 10 to 20 ms."""
    return sorted(set(numbers.ravel().tolist()))


@dataclass(frozen=True, slots=True, eq=False)
class Lane:
    """One lane's order in one epoch; its memory grows with its shards, not with its samples.

    Attributes:
        firsts: the number of the first sample of each shard, in the order in which shards are visited; int64.
        ends: the position in the lane at which each of these shards ends; int64.
        blocks: the bounds of the blocks of positions within which samples are shuffled; int64.
        keys: the key of each block's permutation; empty if samples keep their order.
    """

    firsts: Indices
    ends: Indices
    blocks: Indices
    keys: tuple[int, ...]

    def __len__(self) -> int:
        return int(self.ends[-1])

    def indices(self, positions: Indices) -> Indices:
        """Returns the number of the sample at each position, 0 <= position < len: int64, same shape."""
        unshuffled = self._unshuffled(positions) if self.keys else positions
        shards = np.searchsorted(self.ends, unshuffled, side="right")
        begins = np.concatenate([[0], self.ends[:-1]])
        return np.asarray(self.firsts[shards] + unshuffled - begins[shards], dtype=np.int64)

    def _unshuffled(self, positions: Indices) -> Indices:
        """Returns the position before the shuffle of what stands at each position after it."""
        numbers = np.searchsorted(self.blocks, positions, side="right") - 1
        unshuffled = np.empty_like(positions)
        for block in distinct(numbers):
            inside = numbers == block
            begin, end = int(self.blocks[block]), int(self.blocks[block + 1])
            unshuffled[inside] = begin + permute(positions[inside] - begin, end - begin, self.keys[block])
        return unshuffled


@dataclass(frozen=True, eq=False)
class EpochOrder:
    """The order of one epoch for the whole job; lanes are computed on demand.

    Attributes:
        offsets: the number of the first sample of each shard, then the total; int64.
        lanes: the shards of each lane, by number.
        seed, epoch, shuffle: as given to `epoch_order`.
    """

    offsets: Indices
    lanes: tuple[Indices, ...]
    seed: int
    epoch: int
    shuffle: Shuffle

    @cached_property
    def lane_sizes(self) -> Indices:
        """The number of samples in each lane; int64 of shape (L,)."""
        sizes = np.diff(self.offsets)
        return np.array([sizes[shards].sum() for shards in self.lanes], dtype=np.int64)

    def lane(self, number: int) -> Lane:
        """Returns the order of lane `number`."""
        shards = self.lanes[number]
        key = derive(self.seed, self.epoch, number)
        if isinstance(self.shuffle, Window):
            shards = shards[permute(np.arange(len(shards)), len(shards), key)]
        ends = np.cumsum(self.offsets[shards + 1] - self.offsets[shards])
        blocks = self._blocks(ends)
        num_keys = len(blocks) - 1 if self.shuffle else 0
        keys = tuple(derive(key, block) for block in range(num_keys))
        return Lane(self.offsets[shards], ends, blocks, keys)

    def _blocks(self, ends: Indices) -> Indices:
        """Returns the bounds of the blocks to shuffle, given the ends of the shards."""
        window = self.shuffle.num_shards if isinstance(self.shuffle, Window) else len(ends)
        return np.concatenate([[0], ends[window - 1 : -1 : window], ends[-1:]])


def epoch_order(
    manifest: Manifest, *, seed: int = 0, epoch: int = 0, shuffle: Shuffle = True, lanes: int | None = None
) -> EpochOrder:
    """Returns the order of the samples of `manifest` in one epoch.

    Args:
        manifest: the packed data set.
        seed: the same on every rank.
        epoch: each has its own order.
        shuffle: False, True or Window(w).
        lanes: the number of lanes; by default `num_lanes(manifest)`.

    Raises:
        UsageError: there are no samples, a lane would have none, or `shuffle` is of another type.
    """
    check_shuffle(shuffle)
    offsets = np.array(manifest.offsets, dtype=np.int64)
    dealt = _lanes(manifest, np.diff(offsets), num_lanes(manifest) if lanes is None else lanes)
    order = EpochOrder(offsets, dealt, seed, epoch, shuffle)
    if not order.lane_sizes.all():
        empty = int(np.argmin(order.lane_sizes))
        raise UsageError(
            f"lane {empty} of {len(dealt)} has no samples: {manifest.root} has {manifest.num_samples} samples in "
            f"{len(manifest.shards)} shards; use fewer lanes, or pack with more shards"
        )
    return order


def num_lanes(manifest: Manifest) -> int:
    """Returns the number of parts of a data set that is staged in parts, one for each node, else 1."""
    return max((shard.nodes[0] + 1 for shard in manifest.shards if shard.nodes), default=1)


def _lanes(manifest: Manifest, sizes: Indices, count: int) -> tuple[Indices, ...]:
    """Returns the shards of each lane; if the data set is staged in parts, each part is a lane; raises UsageError."""
    if not any(shard.nodes for shard in manifest.shards):
        return deal_shards(sizes, count)
    if count != num_lanes(manifest):
        raise UsageError(
            f"{count} lanes: {manifest.root} is staged in {num_lanes(manifest)} parts, and each part is a lane; "
            "leave lanes out, or stage the whole data set to every node"
        )
    holders = np.array([shard.nodes[0] if shard.nodes else 0 for shard in manifest.shards])
    return tuple(np.flatnonzero(holders == node) for node in range(count))


def deal_shards(sizes: Indices, count: int) -> tuple[Indices, ...]:
    """Returns the shards of each lane in ascending order; the largest shard left goes to the lane with fewest samples.

    This is Graham's longest-processing-time rule: the fullest lane has at most 4/3 of the least possible.

    Args:
        sizes: the number of samples in each shard.
        count: the number of lanes, at least 1.

    Raises:
        UsageError: `count` is below 1.
    """
    if count < 1:
        raise UsageError(f"{count} lanes: expected at least 1")
    if count == 1:
        return (np.arange(len(sizes)),)
    lanes: list[list[int]] = [[] for _ in range(count)]
    loads = [(0, lane) for lane in range(count)]
    heapify(loads)
    for shard in np.argsort(-sizes, kind="stable").tolist():
        load, lane = loads[0]
        lanes[lane].append(shard)
        heapreplace(loads, (load + int(sizes[shard]), lane))
    return tuple(np.array(sorted(lane), dtype=np.int64) for lane in lanes)


def first_uses(coming: Iterable[Indices], offsets: Indices) -> list[int]:
    """Returns the numbers of the first shards that batches use, in the order of their first use, up to `_MOST_SHARDS`.

    Looks no further than needed: a shuffle uses nearly all shards within a few batches.

    Args:
        coming: the stored samples of each batch of a rank; int64.
        offsets: the number of the first sample of each shard, then the total; int64.
    """
    wanted = min(_MOST_SHARDS, len(offsets) - 1)
    batches = iter(coming)
    found: dict[int, None] = {}
    while len(found) < wanted and (some := list(islice(batches, _STEPS))):
        shards = np.searchsorted(offsets, np.concatenate(some), side="right") - 1
        _, firsts = np.unique(shards, return_index=True)
        found.update(dict.fromkeys(shards[np.sort(firsts)].tolist()))
    return list(found)[:wanted]
