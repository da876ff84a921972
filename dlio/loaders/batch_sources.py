"""The work of making one batch, divided into parts for the threads of a loader."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, replace
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import Any, Protocol, TypeVar, runtime_checkable

from dlio.dataset.manifest import Manifest
from dlio.errors import UsageError
from dlio.images.composed import mix_of
from dlio.io.sizes import counted
from dlio.loaders import batches
from dlio.loaders.dataset import VALID, Batch, PackedSamples
from dlio.loaders.mixture import Data, Mixture
from dlio.loaders.options import Options
from dlio.loaders.prefetch.reads import Reads
from dlio.loaders.prefetch.work import Work, followed
from dlio.loaders.sampling.order import Indices
from dlio.loaders.sampling.rank_share import End, Step

T = TypeVar("T")
R = TypeVar("R")
B_co = TypeVar("B_co", covariant=True)

# Samples that one thread decodes in a row, at least: 13 to 50 ms of work. Each row costs a millisecond more, as all
# that Python does for it has left the processor's caches by then: an image takes 17 us less than in rows of 32, and 14
# more than in rows of 128.
DECODE_SIZE = 64
_READ_SIZE = 256  # the same if little or nothing is decoded: more of them are neighbours
_READ_BYTES = 16 << 20  # of as many; larger samples are read by several threads
_DECODE_BYTES = 4 << 20  # of 64 samples, or of more if they are smaller
_SHOWN_SHARDS = 4


class BatchSource(Protocol[B_co]):
    """Makes batches of samples; safe for several threads."""

    @property
    def samples(self) -> PackedSamples:
        """The data set, with its clock and its count of skipped samples."""

    def work(self, step: Step, key: int) -> Work[B_co]:
        """Returns the work of making one batch; `key` seeds the random choices of its transform."""


@runtime_checkable
class ProcessSource(Protocol[B_co]):
    """A `BatchSource` that makes its batches in its own processes, if threads are asked for."""

    def prefetched(
        self, steps: Iterable[Step], key: int, prefetch: int, timeout: float | None
    ) -> Generator[B_co, None, None]:
        """Yields the batches of steps, in order; closing the generator ends the work; raises as `prefetched`."""


@dataclass(frozen=True, slots=True)
class ArrayBatches:
    """Makes dicts of numpy arrays (see `dlio.loaders.batches`), which several threads fill.

    Attributes:
        samples: the data set and its transform.
        channels_last: images are (n, H, W, 3).
        mask: adds the field `valid`, `Step.valid`.
    """

    samples: PackedSamples
    channels_last: bool = False
    mask: bool = False

    def __post_init__(self) -> None:
        """Raises UsageError if the samples have a field `valid` of their own and `mask` would add it."""
        if self.mask and VALID in self.samples.schema:
            problem = (
                f"{self.samples.manifest.root} has a field {VALID!r}, the name of what end='mask' adds to each batch"
            )
            raise UsageError(f"{problem}: use end='drop' or 'pad', or pack the field under another name")

    def work(self, step: Step, key: int) -> Work[Batch]:
        """Returns the work of making one batch; each part fills some rows."""
        batch = batches.empty(self.samples, len(step.indices), channels_last=self.channels_last)

        def fill(rows: slice, reads: Reads[Batch]) -> None:
            replaced = batches.fill(self.samples, batch, rows.start, step.indices[rows], key, reads)
            step.valid[replaced] = False

        def reads_of(rows: slice) -> Reads[Batch]:
            out = batches.out_rows(self.samples, batch, rows)
            return self.samples.column_reads(step.indices[rows], out)

        size = _part_size(self.samples, len(step.indices))
        item = batch | {VALID: step.valid} if self.mask else batch
        made = divided(self.samples, step, item, reads_of, fill, size)
        if mix_of(self.samples.transform) is None:
            return made
        return replace(made, parts=followed(made.parts, partial(batches.mix, self.samples, batch, step.indices, key)))


def source_of(data: Data | BatchSource[Any], options: Options, *, channels_last: bool) -> Any:
    """Returns what makes the batches: `data` itself, if it is a BatchSource, or ArrayBatches of an opened data set.

    Raises:
        ManifestError, StorageError: as PackedSamples.
        UsageError: as PackedSamples, or the options are about the samples of a source that has opened them.
    """
    if isinstance(data, str | Path | Manifest | Mixture):
        samples = PackedSamples(data, **options.of_samples())
        return ArrayBatches(samples, channels_last=channels_last, mask=options.end is End.MASK)
    options.check_no_samples(type(data).__name__, "give it to PackedSamples")
    return data


def _part_size(samples: PackedSamples, batch_size: int) -> int:
    """Returns how many samples one thread reads or decodes in a row: of those to decode its share, if storage is quick.

    Slow storage is read ahead, which takes smaller parts.
    """
    if samples.transform is None:
        return max(1, min(_READ_SIZE, _READ_BYTES // max(1, samples.sample_bytes)))
    fitting = _DECODE_BYTES // max(1, samples.sample_bytes)
    share = 0 if samples.opened.pace.is_slow else -(-batch_size // max(1, samples.num_threads))
    return min(_READ_SIZE, max(DECODE_SIZE, fitting, share))


def divided(
    samples: PackedSamples,
    step: Step,
    item: T,
    reads_of: Callable[[slice], Reads[R]],
    fill: Callable[[slice, Reads[R]], None],
    size: int,
) -> Work[T]:
    """Returns the work of filling `item`; each part fills up to `size` rows with the result of `reads_of`."""
    rows = [slice(start, start + size) for start in range(0, len(step.indices), size)]
    reads = tuple(map(reads_of, rows))
    parts = tuple(map(partial, repeat(fill), rows, reads))
    hint = samples.hint(step.indices)
    return Work(item, parts, lambda number: described(samples, step.indices[rows[number]]), hint, reads)


def described(samples: PackedSamples, indices: Indices) -> str:
    """Returns the number of samples and the names of their shards, for errors."""
    manifest = samples.manifest
    names = list(dict.fromkeys(manifest.shards[samples.numbering.locate(i)[0]].name for i in indices))
    more = f" and {counted(len(names) - _SHOWN_SHARDS, 'more shard')}" if len(names) > _SHOWN_SHARDS else ""
    return f"{len(indices)} samples of {', '.join(names[:_SHOWN_SHARDS])}{more} in {manifest.root}"
