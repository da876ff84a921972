"""Flips of top and bottom, and turns by quarters."""

from __future__ import annotations

from dataclasses import dataclass

from dlio.errors import UsageError
from dlio.images.effects import check_share
from dlio.images.operations import NOTHING, MovingEffect, Steps, joined, move, quarter
from dlio.random_keys import Keys, uniform


@dataclass(frozen=True, slots=True)
class RandomVerticalFlip(MovingEffect):
    """Top and bottom exchanged in some images: torchvision's transform of this name.

    Attributes:
        p: the share of images that are flipped.

    Raises:
        UsageError: a share that is not from 0 to 1.
    """

    p: float = 0.5

    def __post_init__(self) -> None:
        check_share(self.p)

    def steps(self, size: tuple[int, int], keys: Keys) -> Steps:
        """Returns the flip of each image, or nothing."""
        flip = move((1.0, 0.0, 0.0, 0.0, -1.0, float(size[0])))
        return joined(([flip if number < self.p else NOTHING] for (number,) in uniform(keys, 1).tolist()), 1)


@dataclass(frozen=True, slots=True)
class RandomQuarterTurns(MovingEffect):
    """Images turned by 0, 90, 180 or 270 degrees, evenly; square results only."""

    def steps(self, size: tuple[int, int], keys: Keys) -> Steps:
        """Returns the turn of each image."""
        height, width = size
        if height != width:
            found = f"the transform's results have {height} x {width} pixels"
            raise UsageError(f"RandomQuarterTurns: {found}, expected square ones, such as {min(size)} x {min(size)}")
        turns = [NOTHING, *(move(quarter(number, height, width)) for number in (1, 2, 3))]
        return joined(([turns[int(4 * number)]] for (number,) in uniform(keys, 1).tolist()), 1)
