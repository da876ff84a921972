"""What the threads of a loader make of a step: the work of one batch, in parts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from typing import Any, Protocol, TypeVar

from dlio.dataset.manifest import Manifest
from dlio.errors import UsageError
from dlio.loaders import batches
from dlio.loaders._prefetch.prefetch import Work
from dlio.loaders._prefetch.reads import Reads
from dlio.loaders.dataset import VALID, Batch, PackedSamples
from dlio.loaders.sampling.order import Indices
from dlio.loaders.sampling.rank_share import Step

T = TypeVar("T")
R = TypeVar("R", bound=Reads[Any, Any])

DECODE_SIZE = 32  # samples that one thread decodes in a row: 20 ms of work; a first batch is shared by all threads
_READ_SIZE = 256  # the same where little or nothing is decoded: of many samples, more lie side by side
_DECODE_BYTES = 2 << 20  # what 32 samples have, or more that are smaller
_SHOWN_SHARDS = 4


class Source(Protocol):
    """Makes batches of samples; safe for several threads."""

    @property
    def samples(self) -> PackedSamples:
        """The data set, which keeps the time and counts what is left out."""

    def work(self, step: Step, key: int) -> Work[Any]:
        """Returns the work of making one batch; `key` names the random choices of its transform."""


@dataclass(frozen=True, slots=True)
class ArrayBatches:
    """Makes dicts of numpy arrays (see `dlio.loaders.batches`), written in place by several threads.

    Attributes:
        samples: the data set and its transform.
        channels_last: images are (n, H, W, 3).
        mask: adds the field `valid`, `Step.valid`.
    """

    samples: PackedSamples
    channels_last: bool = False
    mask: bool = False

    def __post_init__(self) -> None:
        """Raises UsageError where the samples have a field `valid` of their own and there is a mask."""
        if self.mask and VALID in self.samples.schema:
            problem = f"{self.samples.manifest.root} has a field {VALID!r}, as is what end='mask' adds to each batch"
            raise UsageError(f"{problem}: end by 'drop' or 'pad', or pack the field by another name")

    def work(self, step: Step, key: int) -> Work[Any]:
        """Returns the work of making one batch, in parts that fill some rows each."""
        batch = batches.empty(self.samples, len(step.indices), channels_last=self.channels_last)

        def fill(rows: slice, reads: Reads[Any, Batch]) -> None:
            replaced = batches.fill(self.samples, batch, rows.start, step.indices[rows], key, reads)
            step.valid[replaced] = False

        size = _READ_SIZE if self.samples.transform is None else _decode_size(self.samples.manifest)
        item = batch | {VALID: step.valid} if self.mask else batch
        return divided(self.samples, step, item, self.samples.column_reads, fill, size)


def _decode_size(manifest: Manifest) -> int:
    """Returns how many samples one thread decodes in a row."""
    fitting = _DECODE_BYTES * manifest.num_samples // max(1, manifest.num_bytes)
    return min(_READ_SIZE, max(DECODE_SIZE, fitting))


def divided(
    samples: PackedSamples,
    step: Step,
    item: T,
    reads_of: Callable[[Indices], R],
    fill: Callable[[slice, R], None],
    size: int,
) -> Work[T]:
    """Returns the work of filling `item`, in parts that `fill` up to `size` rows each with what `reads_of` reads."""
    rows = [slice(start, start + size) for start in range(0, len(step.indices), size)]
    reads = tuple(reads_of(step.indices[part]) for part in rows)
    parts = tuple(map(partial, repeat(fill), rows, reads))
    announce = partial(samples.announce, step.indices)
    return Work(item, parts, lambda number: _named(samples, step.indices[rows[number]]), announce, reads)


def _named(samples: PackedSamples, indices: Indices) -> str:
    """Returns how many samples these are, and of which shards."""
    manifest = samples.manifest
    names = list(dict.fromkeys(manifest.shards[manifest.locate(samples.number(i))[0]].name for i in indices))
    more = f" and {len(names) - _SHOWN_SHARDS} more shards" if len(names) > _SHOWN_SHARDS else ""
    return f"{len(indices)} samples of {', '.join(names[:_SHOWN_SHARDS])}{more} in {manifest.root}"
