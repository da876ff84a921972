"""Numberings: which samples a loader numbers from 0, and in which order an epoch takes them; pure.

A data set numbers its samples. Other numberings follow from it, without a copy: some of its samples, as torch's Subset
chooses them; those of several data sets one after the other, as torch's ConcatDataset joins them; a `Mixture` of these.

    numbered       0  1  2 | 3  4        rows (2, 3, 7 | 9, 12): samples as stored, of two shards
    stored   0  1  2  3  4  5  6  7 | 8  9 10 11 12
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import numpy as np

from dlio.cached import cached_property
from dlio.dataset.manifest import Manifest
from dlio.errors import UsageError
from dlio.io.files import digest_bytes
from dlio.loaders.sampling.mixed_order import MixedOrder, mixed_order
from dlio.loaders.sampling.order import EpochOrder, Indices, Shuffle, epoch_order


@dataclass(frozen=True, slots=True)
class Draws:
    """How a mixture draws from data sets.

    Attributes:
        manifests: of the data sets, whose samples are numbered through.
        counts: see `dlio.loaders.sampling.mixed_order.draws_of`.
        num_samples: of an epoch.
    """

    manifests: tuple[Manifest, ...]
    counts: tuple[int, ...]
    num_samples: int


@dataclass(frozen=True, eq=False)
class Numbering:
    """The samples that are numbered from 0. Immutable, picklable, and safe to share between threads.

    Attributes:
        whole: the manifest of all stored samples.
        rows: the stored sample of each number, int64; None if all are numbered.
        draws: of a mixture; None for others.
    """

    whole: Manifest
    rows: Indices | None = None
    draws: Draws | None = None

    @cached_property
    def offsets(self) -> Indices:
        """The number of the first stored sample of each shard, then their total; int64."""
        return np.array(self.whole.offsets, dtype=np.int64)

    @cached_property
    def manifest(self) -> Manifest:
        """Its shards count the samples that are numbered; the order, and what identifies it, follow from it."""
        return self.whole if self.rows is None else _reduced(self.whole, self.offsets, self.rows)

    def __len__(self) -> int:
        return self._size

    @cached_property
    def _size(self) -> int:
        return self.whole.num_samples if self.rows is None else len(self.rows)

    @property
    def epoch_samples(self) -> int:
        """The number of samples of an epoch."""
        return len(self) if self.draws is None else self.draws.num_samples

    def order(self, *, seed: int, epoch: int, shuffle: Shuffle, lanes: int) -> EpochOrder | MixedOrder:
        """Returns the order of the samples in one epoch; arguments and errors as `epoch_order` and `mixed_order`."""
        if (of := self.draws) is None:
            return epoch_order(self.manifest, seed=seed, epoch=epoch, shuffle=shuffle, lanes=lanes)
        return mixed_order(
            of.manifests, of.counts, of.num_samples, seed=seed, epoch=epoch, shuffle=shuffle, lanes=lanes
        )

    def number(self, index: int) -> int:
        """Returns `index` as a number >= 0; a negative index counts from the end.

        Raises:
            TypeError: it is not an integer.
            IndexError: it is out of range.
        """
        try:
            number = operator.index(index)
        except TypeError:
            raise TypeError(f"sample {index!r} of {len(self)}: expected a whole number") from None
        number += len(self) if number < 0 else 0
        if not 0 <= number < len(self):
            raise IndexError(f"there is no sample {index}: {self.whole.root} has {len(self)}, numbered from 0")
        return number

    def stored(self, indices: Sequence[int] | Indices) -> Indices:
        """Returns the stored samples of indices: int64, same shape; raises as `number`."""
        is_array = isinstance(indices, np.ndarray) and indices.dtype == np.int64
        if is_array and ((array := np.asarray(indices)).view(np.uint64) < len(self)).all():  # -1 is a large one there
            numbers = array
        else:
            numbers = np.array([self.number(index) for index in indices], dtype=np.int64)
        return numbers if self.rows is None else np.asarray(self.rows[numbers])

    def locate(self, index: int) -> tuple[int, int]:
        """Returns the shard of a sample, and its record there; raises as `number`."""
        number = self.number(index)
        return self.whole.locate(number if self.rows is None else int(self.rows[number]))

    def chosen(self, rows: Sequence[int] | Indices) -> Numbering:
        """Returns the numbering of some samples; raises IndexError if a row is out of range."""
        return replace(self, rows=self.stored(rows), draws=None)

    def ascending(self) -> Numbering:
        """Returns the same samples as they are stored, which an order of dlio's needs."""
        return self if self.rows is None else replace(self, rows=np.sort(self.rows))


def joined(parts: Sequence[Numbering]) -> Numbering:
    """Returns the numbering of the samples of several data sets, one after the other.

    Raises:
        UsageError: they differ in fields, classes or label offset, or are staged in parts.
    """
    _check_alike([part.whole for part in parts])
    rows = None
    if any(part.rows is not None for part in parts):
        starts = accumulate((part.whole.num_samples for part in parts), initial=0)
        rows = np.concatenate(
            [start + part.stored(np.arange(len(part))) for start, part in zip(starts, parts, strict=False)]
        )
    return Numbering(_joined([part.whole for part in parts]), rows)


def mixed(parts: Sequence[Numbering], counts: tuple[int, ...], epoch_samples: int | None) -> Numbering:
    """Returns the numbering of a mixture of data sets.

    Args:
        parts: of the data sets.
        counts: see `Draws`.
        epoch_samples: of an epoch; None for as many as the data sets have together.
    """
    found = joined(parts)
    draws = Draws(tuple(part.manifest for part in parts), counts, epoch_samples or len(found))
    plan = f"{found.whole.origin['plan']} {[len(part) for part in parts]} {counts} {draws.num_samples}"
    return replace(found, whole=_planned(found.whole, digest_bytes(plan.encode())), draws=draws)


def _check_alike(manifests: Sequence[Manifest]) -> None:
    first = manifests[0]
    for each in manifests:
        where = f"{first.root} and {each.root} cannot be joined"
        if each.schema != first.schema:
            raise UsageError(
                f"{where}: their fields, classes or label offsets differ: pack both with the same --classes"
            )
        if any(shard.nodes for shard in each.shards):
            raise UsageError(f"{where}: {each.root} is staged in parts: stage it by another strategy")


def _reduced(manifest: Manifest, offsets: Indices, rows: Indices) -> Manifest:
    """Returns a manifest whose shards count the rows that they hold."""
    counts = np.diff(np.searchsorted(np.sort(rows), offsets)).tolist()
    shards = tuple(shard.replace(num_samples=count) for shard, count in zip(manifest.shards, counts, strict=True))
    plan = f"{manifest.origin.get('plan')} {digest_bytes(rows.tobytes())}"
    return _planned(replace(manifest, shards=shards), plan)


def _joined(manifests: Sequence[Manifest]) -> Manifest:
    shards = tuple(shard for manifest in manifests for shard in manifest.shards)
    plans = " ".join(str(manifest.origin.get("plan") or manifest.content_id) for manifest in manifests)
    return _planned(replace(manifests[0], shards=shards), digest_bytes(plans.encode()))


def _planned(manifest: Manifest, plan: str) -> Manifest:
    """Returns a manifest that is identified by another plan."""
    return replace(manifest, origin=dict(manifest.origin) | {"plan": plan})
