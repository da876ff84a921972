"""Mixture: several packed data sets as one, each with a weight, in one order for any number of ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

from dlio.dataset.manifest import Manifest
from dlio.errors import UsageError
from dlio.images import Transforms
from dlio.io.files import digest_bytes
from dlio.loaders.dataset import PackedSamples
from dlio.loaders.joined import JoinedSamples
from dlio.loaders.sampling.mixed_order import MixedOrder, draws_of, mixed_order
from dlio.loaders.sampling.order import Shuffle


@dataclass(frozen=True)
class Mixture:
    """Data sets with weights, which the loaders take in the place of one data set.

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
        draws_of([weight for _, weight in self.parts])
        if self.epoch_samples is not None and self.epoch_samples < 1:
            raise UsageError(f"epoch_samples={self.epoch_samples}: expected a number from 1")


#: What loaders read.
Data: TypeAlias = str | Path | Manifest | Mixture


class MixedSamples(JoinedSamples):
    """The samples of several data sets, numbered through; its order mixes them."""

    def __init__(self, parts: Sequence[PackedSamples], mixture: Mixture) -> None:
        """Mixes opened data sets; raises as `JoinedSamples`."""
        super().__init__(parts)
        self._draws = draws_of([weight for _, weight in mixture.parts])
        self._epoch_samples = mixture.epoch_samples or len(self)
        plan = f"{self.manifest.origin['plan']} {[len(part) for part in parts]} {self._draws} {self._epoch_samples}"
        origin = dict(self.manifest.origin) | {"plan": digest_bytes(plan.encode())}
        self.manifest = replace(self.manifest, origin=origin)

    @property
    def epoch_samples(self) -> int:
        """The number of samples of an epoch."""
        return self._epoch_samples

    def order(self, *, seed: int, epoch: int, shuffle: Shuffle, lanes: int) -> MixedOrder:
        """Returns the order of the samples in one epoch; see `mixed_order`."""
        manifests = [part.manifest for part in self._parts]
        options: dict[str, Any] = {"seed": seed, "epoch": epoch, "shuffle": shuffle, "lanes": lanes}
        return mixed_order(manifests, self._draws, self._epoch_samples, **options)


def open_samples(data: Data, transform: Transforms | None = None, **options: Any) -> PackedSamples:
    """Returns the samples of a data set or of a mixture; arguments and errors as `PackedSamples`."""
    if not isinstance(data, Mixture):
        return PackedSamples(data, transform, **options)
    return MixedSamples([PackedSamples(part, transform, **options) for part, _ in data.parts], data)
