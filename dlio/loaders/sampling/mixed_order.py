"""The order of a mixture of data sets: pure functions of sizes, weights, a seed and an epoch.

Positions come in blocks of 65,536. Each block draws from each set as often as its weight says, evenly spread, so every
batch has about the same shares. A set's draws run through its own order again and again, from one epoch into the next:

    position       0   1   2   3   4   5   6   7   8   9       weights 0.7, 0.3
    set            a   b   a   a   b   a   a   a   b   a
    draw of it     0   0   1   2   1   3   4   5   2   6       draw d: pass d div n, position d mod n, of n samples

So each sample of a set is used equally often, and any position of any epoch is found at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from dlio.cached import cached_property
from dlio.dataset.manifest import Manifest
from dlio.errors import UsageError
from dlio.loaders.sampling.order import EpochOrder, Indices, Lane, Shuffle, distinct, epoch_order
from dlio.random_keys import derive

BLOCK = 1 << 16
_MOST_POSITIONS = 1 << 62
_HELD_LANES = 256


def draws_of(weights: Sequence[float]) -> tuple[int, ...]:
    """Returns how often each of several sets is drawn from in a block.

    Raises:
        UsageError: a weight is not above 0, or so small that no block would draw from its set.
    """
    if not weights or not all(0 < weight < float("inf") for weight in weights):
        raise UsageError(f"the weights {list(weights)}: expected a finite number above 0 for each data set")
    exact = np.array(weights, np.float64) / np.sum(weights) * BLOCK
    draws = exact.astype(np.int64)
    draws[np.argsort(draws - exact, kind="stable")[: BLOCK - int(draws.sum())]] += 1
    if not draws.all():
        raise UsageError(f"the weight {weights[int(draws.argmin())]} is less than 1 of {BLOCK:,} of all: leave it out")
    return tuple(draws.tolist())


@lru_cache(8)
def _block(draws: tuple[int, ...]) -> tuple[Indices, Indices]:
    """Returns the set of each position of a block, and how often it was drawn from in the block before; int64."""
    sets = np.repeat(np.arange(len(draws)), draws)
    nth = np.concatenate([np.arange(count) for count in draws])
    order = np.argsort((nth + 0.5) / np.array(draws)[sets], kind="stable")
    return sets[order], nth[order]


@dataclass(frozen=True, eq=False)
class MixedLane:
    """One lane's order in one epoch, drawn from the lanes of this number of all sets.

    Attributes:
        size: how many positions it has.
        first: the number of its first position, counted through all epochs.
        draws: see `draws_of`.
        sizes: how many samples each set has in the lane; int64.
        lane: returns the lane of a set in a pass.
        starts: the number of the first sample of each set; int64.
    """

    size: int
    first: int
    draws: tuple[int, ...]
    sizes: Indices
    lane: Callable[[int, int], Lane]
    starts: Indices

    def __len__(self) -> int:
        return self.size

    def indices(self, positions: Indices) -> Indices:
        """Returns the number of the sample at each position, 0 <= position < len: int64, same shape."""
        in_block, nth_in_block = _block(self.draws)
        blocks, offsets = np.divmod(positions + self.first, BLOCK)
        sets = in_block[offsets]
        nth = blocks * np.array(self.draws)[sets] + nth_in_block[offsets]
        passes, at = np.divmod(nth, self.sizes[sets])
        found = np.empty_like(positions)
        for number in distinct(sets):
            for turn in distinct(passes[sets == number]):
                inside = (sets == number) & (passes == turn)
                found[inside] = self.starts[number] + self.lane(number, turn).indices(at[inside])
        return found


@dataclass(frozen=True, eq=False)
class MixedOrder:
    """The order of one epoch of a mixture, for the whole job; see `EpochOrder`.

    Attributes:
        orders: of each set, in any epoch.
        starts: the number of the first sample of each set; int64.
        draws: see `draws_of`.
        num_samples: of the epoch.
        epoch: its number.
    """

    orders: tuple[EpochOrder, ...]
    starts: Indices
    draws: tuple[int, ...]
    num_samples: int
    epoch: int

    @cached_property
    def lane_sizes(self) -> Indices:
        """The number of samples in each lane; int64 of shape (L,)."""
        count = len(self.orders[0].lanes)
        return self.num_samples // count + (np.arange(count) < self.num_samples % count)

    def lane(self, number: int) -> MixedLane:
        """Returns the order of lane `number`."""
        size = int(self.lane_sizes[number])
        sizes = np.array([order.lane_sizes[number] for order in self.orders])
        return MixedLane(size, self.epoch * size, self.draws, sizes, self._lanes[number], self.starts)

    @cached_property
    def _lanes(self) -> list[Callable[[int, int], Lane]]:
        def lane_of(lane: int) -> Callable[[int, int], Lane]:
            return lru_cache(_HELD_LANES)(lambda part, turn: replace(self.orders[part], epoch=turn).lane(lane))

        return [lane_of(lane) for lane in range(len(self.lane_sizes))]


def mixed_order(
    manifests: Sequence[Manifest],
    draws: tuple[int, ...],
    num_samples: int,
    *,
    seed: int,
    epoch: int,
    shuffle: Shuffle,
    lanes: int,
) -> MixedOrder:
    """Returns the order of a mixture in one epoch.

    Args:
        manifests: of the data sets, whose samples are numbered through.
        draws: see `draws_of`.
        num_samples: of an epoch.
        seed, epoch, shuffle, lanes: see `epoch_order`.

    Raises:
        UsageError: as `epoch_order`, the epoch is beyond 2**62 samples, or a set's lanes are too unequal.
    """
    if (epoch + 1) * num_samples >= _MOST_POSITIONS:
        raise UsageError(f"epoch {epoch} of {num_samples:,} samples: a mixture ends after 2**62 samples")
    orders = tuple(
        epoch_order(each, seed=derive(seed, number), shuffle=shuffle, lanes=lanes)
        for number, each in enumerate(manifests)
    )
    for each, order in zip(manifests, orders, strict=True):
        _check_lanes(each, order.lane_sizes)
    sizes = [each.num_samples for each in manifests]
    return MixedOrder(orders, np.cumsum([0, *sizes[:-1]]), draws, num_samples, epoch)


def _check_lanes(manifest: Manifest, sizes: Indices) -> None:
    """Refuses lanes if one has more than twice the samples of another: the smaller's would be used more often."""
    least, most = int(sizes.min()), int(sizes.max())
    if most > 2 * least:
        problem = (
            f"{len(sizes)} lanes of {manifest.root} have {least:,} to {most:,} samples, but a mixture draws as often"
        )
        raise UsageError(f"{problem} from each: use fewer lanes, or pack this set with more shards")
