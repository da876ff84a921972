"""Which samples go into any step of a run: what the loaders deliver, without reading a sample."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import numpy as np

from dlio.dataset.manifest import Manifest
from dlio.dataset.reader import open_table
from dlio.dataset.remote import load
from dlio.errors import CorruptRecordError, UsageError
from dlio.loaders.mixture import Data, Mixture
from dlio.loaders.numbering import Numbering, mixed
from dlio.loaders.sampling.mixed_order import MixedOrder, draws_of
from dlio.loaders.sampling.order import EpochOrder, Indices, Shuffle, num_lanes
from dlio.loaders.sampling.rank_share import End, Share, Step, rank_steps
from dlio.loaders.sampling.state import Run
from dlio.look.saved_state import saved_state


@dataclass(frozen=True, slots=True)
class OrderedBatch:
    """The samples of one batch of one rank, in the batch's order.

    Attributes:
        epoch, step, rank: which batch; all are counted from 0.
        samples: the samples' numbers, as in `PackedDataset(...)[number]`.
        keys: their keys.
        valid: False for a sample that only fills up the last steps of an epoch.
    """

    epoch: int
    step: int
    rank: int
    samples: tuple[int, ...]
    keys: tuple[str, ...]
    valid: tuple[bool, ...]


def order(
    dataset: Data,
    *,
    batch_size: int,
    step: int | None = None,
    seed: int | None = None,
    epoch: int | None = None,
    ranks: int = 1,
    rank: int | None = None,
    shuffle: Shuffle = True,
    lanes: int | None = None,
    end: End | str = End.PAD,
    state: str | Path | Mapping[str, object] | None = None,
) -> list[OrderedBatch]:
    """Returns the samples that every loader of dlio delivers in a step, or in all steps of an epoch; reads no sample.

    Steps are counted from the epoch's beginning. Those of `drop` are the first ones of `pad`. The keys come from the
    tables of the shards.

    Args:
        dataset: the folder or URL of the data set, its manifest, or a `Mixture` of these.
        batch_size: samples of one rank's batch.
        step: which step; by default all of the epoch, or those before `state`.
        seed: of the run; by default the state's, or 0.
        epoch: by default the state's, or 0.
        ranks: the number of processes.
        rank: whose batches; by default those of all ranks, numbered node by node.
        shuffle, lanes, end: as the loaders'.
        state: a loader's `state_dict()`, or a file that holds it alone or in a checkpoint: torch's, or JSON. It must
            be of this data set, shuffle and lanes.

    Raises:
        UsageError: the numbers do not fit together, there is no such step, or the state is of another run.
        ManifestError, CorruptRecordError, StorageError: the data set cannot be read.
        MissingPackageError: the state is a file of torch's, and torch is not installed.
    """
    manifests, numbering = _numbered(dataset)
    lanes = num_lanes(numbering.manifest) if lanes is None else lanes
    seed, epoch, stop = _point(numbering, state, seed, epoch, shuffle, lanes)
    epoch_order = _order(numbering, seed, shuffle, lanes, epoch)
    batches = list[tuple[int, int, Step]]()
    for each in _ranks(rank, ranks):
        share = Share(each, ranks, batch_size, lanes)
        steps = rank_steps(epoch_order, share, End(end))
        batches += [(number, each, steps[number]) for number in _steps(step, len(steps), stop, share)]
    batches.sort(key=lambda batch: batch[:2])
    keys = _keys(manifests, numbering, [batch.indices for _, _, batch in batches])
    found = ((number, of, batch.indices.tolist(), batch.valid.tolist()) for number, of, batch in batches)
    return [
        OrderedBatch(epoch, number, of, tuple(samples), tuple(map(keys.__getitem__, samples)), tuple(valid))
        for number, of, samples, valid in found
    ]


def _numbered(dataset: Data) -> tuple[list[Manifest], Numbering]:
    """Returns the manifests of a data set or a mixture, and the numbering of its samples."""
    if isinstance(dataset, Mixture):
        manifests = [load(part) for part, _ in dataset.parts]
        parts = [Numbering(manifest) for manifest in manifests]
        return manifests, mixed(parts, draws_of(dataset.weights), dataset.epoch_samples)
    manifest = load(dataset)
    return [manifest], Numbering(manifest)


def _point(
    numbering: Numbering,
    state: str | Path | Mapping[str, object] | None,
    seed: int | None,
    epoch: int | None,
    shuffle: Shuffle,
    lanes: int,
) -> tuple[int, int, int | None]:
    """Returns seed, epoch, and the position in every lane that the run has reached in it; None if it is all of it."""
    if epoch is not None and epoch < 0:
        raise UsageError(f"epoch {epoch}: epochs are counted from 0")
    if state is None:
        return seed or 0, epoch or 0, None
    found = state if isinstance(state, Mapping) else saved_state(state)
    seed = _whole(found.get("seed")) if seed is None else seed
    order_of = partial(_order, numbering, seed, shuffle, lanes)
    reached = Run(numbering.manifest, shuffle, seed, lanes, order_of).position(found)
    epoch = reached.epoch if epoch is None else epoch
    if epoch > reached.epoch:
        raise UsageError(f"epoch {epoch}: the state is of epoch {reached.epoch}, so the run has not begun this one")
    return seed, epoch, reached.consumed if epoch == reached.epoch else None


def _order(numbering: Numbering, seed: int, shuffle: Shuffle, lanes: int, epoch: int) -> EpochOrder | MixedOrder:
    return numbering.order(seed=seed, epoch=epoch, shuffle=shuffle, lanes=lanes)


def _whole(value: Any) -> int:
    try:
        return int(value)
    except (TypeError, ValueError):
        raise UsageError(f"the state has seed={value!r}: expected a whole number") from None


def _ranks(rank: int | None, ranks: int) -> range:
    if ranks < 1:
        raise UsageError(f"ranks={ranks}: expected at least 1")
    return range(ranks) if rank is None else range(rank, rank + 1)


def _steps(step: int | None, num_steps: int, stop: int | None, share: Share) -> range:
    """Returns the numbers of the steps asked for."""
    if step is not None:
        if not 0 <= step < num_steps:
            raise UsageError(f"step {step}: the epoch has {num_steps} steps of this size, counted from 0")
        return range(step, step + 1)
    if stop is None:
        return range(num_steps)
    if stop % share.lane_batch:
        raise UsageError(
            f"the state is {stop * share.num_lanes:,} samples into its epoch, where no step of "
            f"{share.batch_size} x {share.world_size} samples ends: give the batch size and ranks of the run"
        )
    return range(stop // share.lane_batch)


def _keys(manifests: Iterable[Manifest], numbering: Numbering, wanted: list[Indices]) -> dict[int, str]:
    """Returns the keys of some samples by number; opens each shard's table once."""
    numbers = np.unique(np.concatenate([*wanted, np.empty(0, np.int64)]))
    shards = [(manifest, number) for manifest in manifests for number in range(len(manifest.shards))]
    bounds, starts = np.searchsorted(numbers, numbering.offsets).tolist(), numbering.offsets.tolist()
    parts = [
        _keys_in(*shard, numbers[first:stop] - start)
        for shard, (first, stop), start in zip(shards, pairwise(bounds), starts, strict=False)
        if first < stop
    ]
    return dict(zip(numbers.tolist(), chain.from_iterable(parts), strict=True))


def _keys_in(manifest: Manifest, number: int, records: Indices) -> Iterator[str]:
    """Yields the keys of some records of a shard."""
    shard = manifest.shards[number]
    table = open_table(manifest, shard)
    if table is None:
        problem = f"the shard {shard.name} has no table of its samples: pack the data set again"
        raise CorruptRecordError(manifest.root / shard.files[0].name, problem)
    with closing(table):
        first, stop = int(records[0]), int(records[-1]) + 1
        keys = table.keys(first, stop)
        yield from (keys[record - first] for record in records.tolist())
