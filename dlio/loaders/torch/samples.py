"""The samples of a DataLoader: those of what it is given, and lists of them for a `collate_fn`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dlio.dataset.manifest import Manifest
from dlio.errors import UsageError
from dlio.loaders.batch_sources import DECODE_SIZE, divided
from dlio.loaders.dataset import PackedSamples
from dlio.loaders.mixture import Mixture
from dlio.loaders.options import Options
from dlio.loaders.prefetch.reads import Reads
from dlio.loaders.prefetch.work import Work
from dlio.loaders.sampling.rank_share import Step
from dlio.loaders.torch.dataset import PackedDataset, chosen_part

Items = tuple[list[Any], npt.NDArray[np.bool_]]


def samples_of(given: Any, transform: Any, options: Options, *, ascending: bool) -> PackedDataset:
    """Returns the samples of what a loader is given; raises UsageError."""
    if isinstance(given, str | Path | Manifest | Mixture):
        return PackedDataset(given, **options.of_samples() | {"transform": transform})
    advice = "give it to PackedDataset"
    options.check_no_samples("a dataset", advice)
    if transform is not None:
        raise UsageError(f"transform={transform!r} with a dataset: {advice}")
    chosen: PackedDataset = chosen_part(given, ascending=ascending)
    return chosen


def check_makes_batches(dataset: object, *, collates: bool, sized: bool) -> None:
    """Checks that batches can be made of the samples; raises UsageError."""
    if not isinstance(dataset, PackedDataset):
        raise UsageError(f"dlio's DataLoader reads a PackedDataset, not {type(dataset).__name__}: use torch's own")
    if dataset.makes_images and not collates:
        raise UsageError(
            "images of different sizes cannot form a batch: give the PackedDataset a transform, or a collate_fn here"
        )
    if not sized:
        raise UsageError("batch_size=None: dlio's DataLoader makes batches; use torch's own for single samples")


@dataclass(frozen=True, slots=True)
class ItemBatches:
    """Makes pairs of a list of samples, for a `collate_fn`, and `Step.valid`.

    Attributes:
        dataset: the samples.
    """

    dataset: PackedDataset

    @property
    def samples(self) -> PackedSamples:
        """The data set, with its clock and its count of skipped samples."""
        return self.dataset.packed

    def work(self, step: Step, key: int) -> Work[Items]:
        """Returns the work of making one list, in parts."""
        items: list[Any] = [None] * len(step.indices)

        def fill(rows: slice, reads: Reads[Any]) -> None:
            items[rows] = self.dataset.items(step.indices[rows], key, reads)

        def reads_of(rows: slice) -> Reads[Any]:
            return self.samples.column_reads(step.indices[rows])

        return divided(self.samples, step, (items, step.valid), reads_of, fill, DECODE_SIZE)
