"""Random choices from a seed, the same on every machine and in every version of Python.

Only `random.Random.random` is promised not to change, so everything else is derived from it here. Each concern has a
generator of its own name, not number: one more draw for a disk changes nothing of the network's.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import TypeVar

Item = TypeVar("Item")


class Chance:
    """Draws for one concern; for one thread.

    Args:
        seed: of the whole schedule.
        name: of the concern.
    """

    def __init__(self, seed: int, name: str) -> None:
        self.fraction = Random(f"{seed}/{name}").random  #: returns a float in [0, 1)

    def below(self, limit: int) -> int:
        """Returns an integer in [0, limit); `limit` is at most 2^53."""
        return int(self.fraction() * limit)

    def between(self, least: int, most: int) -> int:
        """Returns an integer in [least, most]."""
        return least + int(self.fraction() * (most - least + 1))

    def happens(self, probability: float) -> bool:
        """Returns whether something of this probability happens; draws nothing if it cannot."""
        return probability > 0 and self.fraction() < probability

    def pick(self, items: Sequence[Item]) -> Item:
        """Returns one of some items."""
        return items[self.below(len(items))]

    def shuffled(self, items: Sequence[Item]) -> list[Item]:
        """Returns the items in a drawn order."""
        left = list(items)
        for end in range(len(left) - 1, 0, -1):
            other = self.below(end + 1)
            left[end], left[other] = left[other], left[end]
        return left

    def bytes(self, count: int) -> bytes:
        """Returns drawn bytes."""
        return bytes([int(self.fraction() * 256) for _ in range(count)])

    def delay(self, least: int, most: int) -> int:
        """Returns an integer of [least, most], of each magnitude as likely as of another; `least` is at least 1."""
        magnitude = self.between(least.bit_length(), most.bit_length())
        return min(max(least, self.between(1 << magnitude - 1, (1 << magnitude) - 1)), most)
