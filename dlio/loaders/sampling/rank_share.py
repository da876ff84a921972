"""Each rank's share of every global batch, and the end of an epoch: pure functions.

    ranks >= lanes   world_size / L ranks draw from each lane; each takes a consecutive part of the lane's samples
    ranks <  lanes   each rank draws from L / world_size lanes, and takes an equal number of samples from each

The number of steps follows from lane sizes, batch size and world size alone. These are equal on all ranks, so no rank
runs out of batches before another. Lanes of unequal size, and a last batch that is not full, end in one of three ways:

    drop   whole global batches only, as many as the shortest lane gives; each epoch leaves out other samples
    pad    every sample; the last batch may be short, and shorter lanes repeat their first samples
    mask   as pad, and `Step.valid` is False for repeated samples
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from itertools import chain
from typing import NoReturn

import numpy as np
import numpy.typing as npt

from dlio.cached import cached_property
from dlio.errors import UsageError
from dlio.loaders.sampling.mixed_order import MixedLane, MixedOrder
from dlio.loaders.sampling.order import EpochOrder, Indices, Lane

_STRETCH_SAMPLES = 8192  # looked up together; 0.13 us a sample, against 1.4 us for 256 together


class End(StrEnum):
    """How an epoch ends if samples do not divide evenly."""

    DROP = "drop"
    PAD = "pad"
    MASK = "mask"

    @classmethod
    def _missing_(cls, value: object) -> NoReturn:
        """Raises UsageError for what is none of the three."""
        raise UsageError(f"end={value!r}: expected {', '.join(sorted(End))}")


@dataclass(frozen=True, slots=True)
class Share:
    """A rank's share of every global batch.

    Attributes:
        rank, world_size: this process, and the number of processes.
        batch_size: samples of one rank's batch.
        num_lanes: lanes of the order; it divides `world_size`, or is a multiple of it.

    Raises:
        UsageError: the numbers do not divide evenly.
    """

    rank: int
    world_size: int
    batch_size: int
    num_lanes: int = 1

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise UsageError(f"a batch size of {self.batch_size}: expected at least 1")
        if not 0 <= self.rank < self.world_size:
            raise UsageError(f"rank {self.rank} of {self.world_size}: expected 0 <= rank < world_size")
        if self.world_size % self.num_lanes and self.num_lanes % self.world_size:
            raise UsageError(
                f"{self.num_lanes} lanes cannot be shared by {self.world_size} ranks: one must divide the other"
            )
        if self.batch_size % self.lanes_per_rank:
            raise UsageError(
                f"a batch of {self.batch_size} cannot take equal parts of the {self.lanes_per_rank} lanes of each "
                f"rank: use a multiple of {self.lanes_per_rank}"
            )

    @property
    def lanes_per_rank(self) -> int:
        """Lanes that a rank draws from."""
        return max(1, self.num_lanes // self.world_size)

    @property
    def ranks_per_lane(self) -> int:
        """Ranks that draw from the same lane."""
        return max(1, self.world_size // self.num_lanes)

    @property
    def lane_batch(self) -> int:
        """Samples that a global batch takes from each lane."""
        return self.batch_size * self.ranks_per_lane // self.lanes_per_rank

    @property
    def lanes(self) -> range:
        """The lanes of this rank."""
        first = self.rank * self.lanes_per_rank // self.ranks_per_lane
        return range(first, first + self.lanes_per_rank)

    @property
    def slot(self) -> int:
        """This rank's number among those that draw from its lane."""
        return self.rank % self.ranks_per_lane


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """One batch of one rank.

    Attributes:
        indices: the samples' numbers; int64 of shape (n,).
        valid: False for repeated samples; bool of shape (n,).
    """

    indices: Indices
    valid: npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class RankSteps:
    """The batches of one rank in one epoch, computed on demand; a sequence of `Step`.

    Attributes:
        order: the epoch's order.
        share: this rank's share.
        end: how the epoch ends.
        start: the position in every lane at which to start, for an epoch that is resumed.
    """

    order: EpochOrder | MixedOrder
    share: Share
    end: End = End.DROP
    start: int = 0

    def __len__(self) -> int:
        return -(-(self.stop - self.start) // self.share.lane_batch)

    @cached_property
    def stop(self) -> int:
        """The position at which every lane ends."""
        if self.end is End.DROP:
            left = max(0, int(self.order.lane_sizes.min()) - self.start)
            return self.start + left - left % self.share.lane_batch
        left = max(0, int(self.order.lane_sizes.max()) - self.start)
        return self.start + left + -left % self.share.ranks_per_lane

    @property
    def num_samples(self) -> int:
        """The samples of all batches together, the repeated ones included."""
        return (self.stop - self.start) // self.share.ranks_per_lane * self.share.lanes_per_rank

    @cached_property
    def _lanes(self) -> tuple[Lane | MixedLane, ...]:
        return tuple(self.order.lane(number) for number in self.share.lanes)

    def __getitem__(self, step: int) -> Step:
        """Returns batch `step`.

        Raises:
            IndexError: `step` is out of range.
        """
        if not 0 <= step < len(self):
            raise IndexError(f"step {step} of {len(self)}")
        return next(self._stretch(range(step, step + 1)))

    def __iter__(self) -> Iterator[Step]:
        count = max(1, _STRETCH_SAMPLES // self.share.batch_size)
        stretches = (range(first, min(first + count, len(self))) for first in range(0, len(self), count))
        return chain.from_iterable(map(self._stretch, stretches))

    def _stretch(self, steps: range) -> Iterator[Step]:
        """Yields consecutive steps, whose samples are looked up together."""
        parts = [self._positions(step) for step in steps]
        positions = np.concatenate([np.arange(part.start, part.stop) for part in parts])
        indices = np.stack([lane.indices(positions % len(lane)) for lane in self._lanes])
        valid = np.stack([positions < len(lane) for lane in self._lanes])
        stop = 0
        for part in parts:
            start, stop = stop, stop + len(part)
            yield Step(indices[:, start:stop].ravel(), valid[:, start:stop].ravel())

    def _positions(self, step: int) -> range:
        """Returns the positions that this rank takes from each of its lanes in a step."""
        begin = self.start + step * self.share.lane_batch
        end = min(begin + self.share.lane_batch, self.stop)
        size = (end - begin) // self.share.ranks_per_lane
        begin += self.share.slot * size
        return range(begin, begin + size)

    def consumed(self, steps: int) -> int:
        """Returns the position reached in every lane after `steps` batches."""
        return min(self.start + steps * self.share.lane_batch, self.stop)


def rank_steps(order: EpochOrder | MixedOrder, share: Share, end: End = End.DROP) -> RankSteps:
    """Returns the batches of one rank in one epoch.

    Raises:
        UsageError: there is no whole batch; the same on every rank.
    """
    steps = RankSteps(order, share, end)
    if not len(steps):
        raise UsageError(
            f"no complete batch: {share.world_size} ranks take {share.lane_batch} samples a step from each of "
            f"{share.num_lanes} lanes, the smallest lane has {int(order.lane_sizes.min())}; "
            "use a smaller batch, or end='pad' instead of 'drop'"
        )
    return steps
