"""PackedSamples: the samples of a packed data set by number; the framework-free core of every loader."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from dlio.cached import cached_property
from dlio.codecs.decode_ready import check_core
from dlio.dataset.pool import ShardRead, joined_columns, read_columns
from dlio.dataset.schema import Array, Sample
from dlio.dataset.shard_files import is_apart
from dlio.errors import CorruptRecordError, UsageError
from dlio.images import Transform, Transforms, composed
from dlio.loaders.columns import made_fields, narrowed
from dlio.loaders.mixture import Data
from dlio.loaders.opened import Opened, open_data
from dlio.loaders.prefetch.memory import STRIP_BYTES, Strip
from dlio.loaders.prefetch.reads import REQUEST_BYTES, Reads, Rows, pieces
from dlio.loaders.sampling.order import Indices
from dlio.targets import IMAGE, LABEL, targets_of

VALID = "valid"  # added to batches if an epoch ends by masking

_MOST_SPARED = 15  # hints in a row; one takes as long as reading 100 small records

V = TypeVar("V")
R = TypeVar("R")

#: Values of several samples: a list or an array for each field, in the schema's order.
Batch = dict[str, Any]


class PackedSamples:
    """Reads the samples of a packed data set, in any order.

    Safe for several threads. Picklable, and safe across fork: every process opens its own files.

    Attributes:
        schema: the fields of every sample.
        made: the types of a batch's fields.
        num_threads: how many threads of a loader share the work of a batch; at first more than it has samples.
    """

    def __init__(
        self,
        data: Data | Opened,
        transform: Transforms | None = None,
        *,
        fields: Sequence[str] | None = None,
        cache: str | Path | bool | None = None,
        upright: bool = False,
        max_skipped: int = 0,
    ) -> None:
        """Opens a data set; its shards are opened on demand.

        Args:
            data: the folder or URL that holds `manifest.jsonl`, a manifest, a `Mixture` of these, or opened data sets.
            transform, fields, cache, upright, max_skipped: see `dlio.loaders.options.Options`.

        Raises:
            ManifestError: the folder holds no data set.
            StorageError: it cannot be read, or there is no room in the cache.
            MissingPackageError: it has decode-ready records, and this installation cannot read them.
            UsageError: `transform` is not a transform, samples have no field `image`, or one that may move or not, or
                one that cannot be mixed; a name in `fields` is not a field; or the data sets of a mixture differ in
                fields, classes or label offset.
        """
        transform = composed(transform)
        if transform is not None and (isinstance(transform, type) or not isinstance(transform, Transform)):
            raise UsageError(f"transform={transform!r} is not a transform of dlio.images, such as CenterCrop(224)")
        self.opened = data if isinstance(data, Opened) else open_data(data, cache, max_skipped)
        self.numbering, self.manifest = self.opened.numbering, self.opened.numbering.manifest
        self.clock, self.skips, self.memory = self.opened.clock, self.opened.skips, self.opened.memory
        self.transform, self.upright = transform, upright
        self.num_threads = sys.maxsize
        self._useless_hints = self._spared = 0
        where = self.manifest.root
        if self.manifest.decode_ready.records:
            check_core()
        self.schema = narrowed(self.manifest.schema, fields, where)
        if transform is not None and IMAGE not in self.schema:
            raise UsageError(f"{where} has no field 'image' to transform, only {sorted(self.schema)}")
        self.targets = targets_of(self.schema, transform, where)
        self.made = made_fields(self.schema, transform, self.targets, where)

    def over(self, opened: Opened) -> PackedSamples:
        """Returns other samples with the same transform."""
        return PackedSamples(opened, self.transform, fields=tuple(self.schema), upright=self.upright)

    @property
    def output_size(self) -> tuple[int, int]:
        """Height and width of images; needs a transform."""
        assert self.transform is not None
        return self.transform.output_size

    def __len__(self) -> int:
        return len(self.numbering)

    def key(self, index: int) -> str:
        """Returns the key of sample `index`.

        Raises:
            IndexError: an index is out of range.
            CorruptRecordError, StorageError: as `read`.
        """
        number, record = self.numbering.locate(index)
        with self.opened.pool.shard(number) as shard:
            return shard.key(record)

    @cached_property
    def labels(self) -> Array:
        """The field `label` of all samples without the label offset: an array of shape (n, *shape), read-only.

        Raises:
            UsageError: there is no such field, or its shape varies.
            CorruptRecordError, StorageError: as `read`.
        """
        kind = self.manifest.schema.get(LABEL)
        if kind is None or not kind.is_fixed:
            raise UsageError(f"{self.manifest.root} has no field 'label' of numbers, only {self.manifest.schema}")
        columns = [np.empty((0, *kind.fixed_shape), kind.dtype)]  # for a data set without shards
        for number in range(len(self.manifest.shards)):
            with self.opened.pool.shard(number) as shard:
                columns.append(shard.column(LABEL))
        labels = self.class_indices(np.concatenate(columns))
        labels = labels if self.numbering.rows is None else labels[self.numbering.rows]
        labels.flags.writeable = False
        return labels

    def class_indices(self, labels: Array) -> Array:
        """Returns stored labels without the label offset; same dtype and shape."""
        offset = self.schema.label_offset
        return np.asarray(labels - labels.dtype.type(offset)) if offset else labels

    def read(self, indices: Sequence[int] | Indices) -> list[Sample]:
        """Returns samples as they are stored, in the order of `indices`; reads go shard by shard, in the shard's order.

        Raises:
            IndexError: an index is out of range.
            CorruptRecordError: a record is damaged; names file, record, offset and key.
            StorageError: a shard is missing or cannot be read.
        """
        samples: list[Any] = [None] * len(indices)
        for reads in self._shard_reads(indices):
            for shard, rows, records in reads:
                for row, record in zip(rows.tolist(), records.tolist(), strict=True):
                    samples[row] = shard.read(record)
        return samples

    def read_columns(self, indices: Sequence[int] | Indices) -> Batch:
        """Returns the same samples by field: an array if all values have the same shape, else a list.

        Bytes are read-only views of memory that is reused when no view of it is left.

        Raises:
            IndexError, CorruptRecordError, StorageError: as `read`.
        """
        return self.column_reads(indices).take()

    def column_reads(self, indices: Sequence[int] | Indices, out: Batch | None = None) -> Reads[Batch]:
        """Returns the reads of `read_columns`, which may be made ahead of use.

        Args:
            indices: n samples.
            out: for some fields of numbers the arrays to read into, C-contiguous, of shape (n, *shape).
        """
        take, out = Strip(self.opened.read_memory).take, out or {}

        def read(rows: Rows | None) -> list[tuple[Indices, Batch]]:
            self.clock.add("read_bytes", (len(indices) if rows is None else len(rows)) * self.sample_bytes)
            found: list[tuple[Indices, Batch]] = []
            for reads in self._shard_reads(indices, rows):
                found += zip([each.rows for each in reads], read_columns(reads, take, out), strict=True)
            return found

        def cut() -> list[Rows]:
            return pieces(self.numbering.stored(indices), self._request_bytes)

        join = partial(joined_columns, self.schema, len(indices), out)
        return Reads(read, join, cut, len(indices) * self.sample_bytes, self.opened.pace)

    @cached_property
    def _request_bytes(self) -> int:
        """What a sample counts for when reads are cut: neighbours that are separate files are not one request."""
        shards = self.manifest.shards
        is_own = bool(shards) and is_apart(self.manifest, shards[0])
        return max(self.sample_bytes, REQUEST_BYTES) if is_own else self.sample_bytes

    @cached_property
    def sample_bytes(self) -> int:
        """The mean size of a sample, in bytes."""
        return self.numbering.whole.sample_bytes

    def keep_memory(self, num_batches: int, batch_size: int) -> None:
        """Keeps memory for a number of batches that live at a time, and for the records that they are made of."""
        batch_bytes = batch_size * self.sample_bytes
        self.memory.limit = num_batches * max(1, sum(kind.is_fixed for kind in self.made.values()))
        self.opened.read_memory.limit = num_batches * (2 + batch_bytes // STRIP_BYTES)

    def prefetch_hint(self, indices: Sequence[int] | Indices) -> None:
        """Opens the shards of samples and asks the system to prefetch their records.

        Raises:
            IndexError, CorruptRecordError, StorageError: as `read`.
        """
        in_memory = True
        for reads in self._shard_reads(indices):
            for read in reads:
                in_memory &= read.shard.prefetch_hint(read.records)
        in_memory &= not self.opened.fillings
        self._spared = self._useless_hints = min(2 * self._useless_hints + 1, _MOST_SPARED) if in_memory else 0

    def hint(self, indices: Indices) -> Callable[[], None] | None:
        """Returns a call of `prefetch_hint`; mostly None where the last ones found all in memory."""
        if self._spared:
            self._spared -= 1
            return None
        return partial(self.prefetch_hint, indices)

    def _shard_reads(self, indices: Sequence[int] | Indices, rows: Rows | None = None) -> Iterator[list[ShardRead]]:
        """Yields the reads of the shards that hold the samples, or those of `rows`."""
        stored = self.numbering.stored(indices if rows is None else np.asarray(indices)[rows])
        places = np.arange(len(stored)) if rows is None else rows
        return self.opened.pool.reads(self.numbering.offsets, stored, places)

    def damage(self, index: int, problem: str) -> CorruptRecordError:
        """Returns the error that names the file, record, offset and key of sample `index`."""
        number, record = self.numbering.locate(index)
        with self.opened.pool.shard(number) as shard:
            path, offset = shard.locate(record)
            return CorruptRecordError(path, f"sample {shard.key(record)!r}: {problem}", record=record, offset=offset)

    def left_out(self, index: int, problem: str) -> CorruptRecordError:
        """Returns the error of `damage`, and counts it as that of a sample left out; raises as `Skips.note`."""
        error = self.damage(index, problem)
        self.skips.note(error)
        return error

    def close(self) -> None:
        """Closes all files; they are opened again on demand."""
        self.opened.pool.close()
        self.memory.clear()
        self.opened.read_memory.clear()
