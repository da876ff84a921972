"""Mixture: several packed data sets as one, each with a weight, in one order for any number of ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from dlio.dataset.manifest import Manifest
from dlio.errors import UsageError
from dlio.loaders.sampling.mixed_order import draws_of


@dataclass(frozen=True)
class Mixture:
    """Data sets with weights, which the loaders accept instead of one data set.

    Every batch draws from each data set by its weight, and each draws its own samples equally often, over all epochs.

    Attributes:
        parts: pairs of a data set (a folder, URL or manifest) and its weight; weights are relative.
        epoch_samples: how many samples are an epoch; by default as many as all data sets have together.
    """

    parts: Sequence[tuple[str | Path | Manifest, float]]
    epoch_samples: int | None = None

    def __post_init__(self) -> None:
        if isinstance(self.parts, str) or not all(
            isinstance(part, tuple | list) and len(part) == 2 for part in self.parts
        ):
            raise UsageError(f"{self.parts!r}: expected pairs of a data set and its weight, as [('packed', 1.0), ...]")
        draws_of(self.weights)
        if self.epoch_samples is not None and self.epoch_samples < 1:
            raise UsageError(f"epoch_samples={self.epoch_samples}: expected a number >= 1")

    @property
    def weights(self) -> list[float]:
        """The weight of each data set."""
        return [weight for _, weight in self.parts]


#: What loaders read.
Data: TypeAlias = str | Path | Manifest | Mixture
