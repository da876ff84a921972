"""Some samples of a packed data set, such as torch's Subset and random_split choose: with dlio's order and resume."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from dlio.dataset.manifest import Manifest
from dlio.io.files import digest_bytes
from dlio.loaders.dataset import PackedSamples
from dlio.loaders.sampling.order import Indices
from dlio.loaders.sampling.rank_share import Step


class ChosenSamples(PackedSamples):
    """The samples `rows` of a data set, by numbers from 0; it shares the open files of `whole`.

    Its manifest counts the chosen samples of each shard, so that an order over it is one over them.
    """

    def __init__(self, whole: PackedSamples, rows: Sequence[int] | Indices) -> None:
        """Chooses rows, which are ascending if an order of dlio's is to be taken.

        Raises:
            IndexError: a row is out of range.
        """
        vars(self).update(vars(whole))
        self._whole = whole
        self._rows = whole.numbers(rows)
        self.sample_bytes, self._offsets = whole.sample_bytes, np.array(whole.manifest.offsets, np.int64)
        self.manifest = _reduced(whole.manifest, self._rows)
        vars(self).pop("labels", None)

    def locate(self, index: int) -> tuple[int, int]:
        """Returns the shard of sample `index`, and its record there."""
        return self._whole.locate(int(self._rows[self.number(index)]))

    def numbers(self, indices: Sequence[int] | Indices) -> Indices:
        """Returns the numbers of samples in the whole data set."""
        return np.asarray(self._rows[super().numbers(indices)])

    def expect(self, coming: Iterable[Step]) -> None:
        """Sends the order of these batches' shards; see `PackedSamples.expect`."""
        super().expect(replace(step, indices=self._rows[step.indices]) for step in coming)

    @property
    def labels(self) -> npt.NDArray[np.generic]:
        """The labels of the chosen samples; see `PackedSamples.labels`."""
        return np.asarray(self._whole.labels[self._rows])


def _reduced(manifest: Manifest, rows: Indices) -> Manifest:
    counts = np.diff(np.searchsorted(np.sort(rows), manifest.offsets)).tolist()
    shards = (shard.replace(num_samples=count) for shard, count in zip(manifest.shards, counts, strict=True))
    origin = dict(manifest.origin) | {"plan": f"{manifest.origin.get('plan')} {digest_bytes(rows.tobytes())}"}
    return replace(manifest, shards=tuple(shards), origin=origin)
