"""Lists of a PackedDataset's samples, for a `collate_fn`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dlio.loaders.batch_sources import DECODE_SIZE, divided
from dlio.loaders.dataset import PackedSamples
from dlio.loaders.prefetch.reads import Reads
from dlio.loaders.prefetch.work import Work
from dlio.loaders.sampling.rank_share import Step
from dlio.loaders.torch.dataset import PackedDataset

Items = tuple[list[Any], npt.NDArray[np.bool_]]


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
            return self.dataset.reads(step.indices[rows])

        return divided(self.samples, step, (items, step.valid), reads_of, fill, DECODE_SIZE)
