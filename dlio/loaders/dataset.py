"""PackedSamples: the samples of a packed data set by number; the framework-free core of every loader."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from dlio.dataset.manifest import Manifest
from dlio.dataset.pool import ShardPool
from dlio.dataset.schema import Array, Sample, Schema
from dlio.errors import CorruptRecordError, MissingError, UsageError
from dlio.images import Transform, Transforms, composed
from dlio.io.arrivals import Filling
from dlio.io.threads import started
from dlio.loaders._prefetch.joining import joined_columns, joined_samples
from dlio.loaders._prefetch.memory import PIECE_BYTES, BatchMemory, Strip
from dlio.loaders._prefetch.reads import Reads, Rows, WaitTimes, pieces
from dlio.loaders.open_data import open_data
from dlio.loaders.sampling.first_uses import first_uses
from dlio.loaders.sampling.mixed_order import MixedOrder
from dlio.loaders.sampling.order import EpochOrder, Indices, Shuffle, epoch_order
from dlio.loaders.sampling.rank_share import Step
from dlio.loaders.skips import Skips
from dlio.loaders.stats import Clock
from dlio.loaders.visits import Visit, read_columns, read_samples, visits

IMAGE = "image"
LABEL = "label"
VALID = "valid"  # added to batches if an epoch ends by masking

_READ_PIECES = 16  # 64 MB, for samples that are read without a loader, which would set a limit
_MOST_SPARED = 15  # hints in a row; one takes as long as reading 100 small records

V = TypeVar("V")
R = TypeVar("R")

#: Values of several samples: a list or an array for each field, in the schema's order.
Batch = dict[str, Any]


class PackedSamples:
    """Reads the samples of a packed data set, in any order.

    Safe for several threads. Picklable, and safe across fork: every process opens its own files.
    """

    def __init__(
        self,
        data: str | Path | Manifest,
        transform: Transforms | None = None,
        *,
        cache: str | Path | bool | None = None,
        upright: bool = False,
        max_skipped: int = 0,
    ) -> None:
        """Opens a data set; its shards are opened on demand.

        Args:
            data: the folder or URL that holds `manifest.jsonl`, or a manifest.
            transform: one of `dlio.images`, or a list, applied to the field `image`; without one images stay encoded.
            cache: the node-local folder to stage to while the data set is read; True chooses one, as `dlio.stage` does.
            upright: rotate images by their EXIF orientation, unlike torchvision's ImageFolder.
            max_skipped: how many damaged samples are replaced by others of their batch before one is an error.

        Raises:
            ManifestError: the folder holds no data set.
            StorageError: it cannot be read, or there is no room in the cache.
            UsageError: `transform` is not a transform, or samples have no field `image`.
        """
        transform = composed(transform)
        if transform is not None and (isinstance(transform, type) or not isinstance(transform, Transform)):
            raise UsageError(f"transform={transform!r} is not one of dlio.images: expected such as CenterCrop(224)")
        self.manifest, self.filling = open_data(data, cache)
        self.clock = Clock()
        self.pace = WaitTimes()
        self.skips = Skips(max_skipped)
        self.memory = BatchMemory()
        self.read_memory = BatchMemory(_READ_PIECES)
        self.transform, self.upright = transform, upright
        self._useless_hints = self._spared = 0
        self._pool = ShardPool(self.manifest, filling=self.filling)
        if transform is not None and IMAGE not in self.schema:
            raise UsageError(f"{self.manifest.root} has no field 'image' to transform, only {sorted(self.schema)}")

    @property
    def schema(self) -> Schema:
        """The fields of every sample."""
        return self.manifest.schema

    def __len__(self) -> int:
        return self.manifest.num_samples

    @property
    def epoch_samples(self) -> int:
        """The number of samples of an epoch."""
        return len(self)

    def order(self, *, seed: int, epoch: int, shuffle: Shuffle, lanes: int) -> EpochOrder | MixedOrder:
        """Returns the order of the samples in one epoch; arguments and errors as `epoch_order`."""
        return epoch_order(self.manifest, seed=seed, epoch=epoch, shuffle=shuffle, lanes=lanes)

    def number(self, index: int) -> int:
        """Returns `index` as a number from 0; a negative index counts from the end.

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
            raise IndexError(f"there is no sample {index}: {self.manifest.root} has {len(self)}, numbered from 0")
        return number

    def locate(self, index: int) -> tuple[int, int]:
        """Returns the shard of sample `index`, and its record there; raises as `number`."""
        return self.manifest.locate(self.number(index))

    def key(self, index: int) -> str:
        """Returns the key of sample `index`.

        Raises:
            IndexError: an index is out of range.
            CorruptRecordError, StorageError: as `read`.
        """
        number, record = self.locate(index)
        with self._pool.shard(number) as shard:
            return shard.key(record)

    @cached_property
    def labels(self) -> Array:
        """The field `label` of all samples without the label offset: an array of shape (n, *shape), read-only.

        Raises:
            UsageError: there is no such field, or its shape varies.
            CorruptRecordError, StorageError: as `read`.
        """
        if LABEL not in self.schema or not self.schema[LABEL].is_fixed:
            raise UsageError(f"{self.manifest.root} has no field 'label' of numbers, only {self.schema.types()}")
        kind = self.schema[LABEL]
        columns = [np.empty((0, *kind.fixed_shape), kind.dtype)]  # for a data set without shards
        for number in range(len(self.manifest.shards)):
            with self._pool.shard(number) as shard:
                columns.append(shard.column(LABEL))
        labels = self.class_indices(np.concatenate(columns))
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
        return self.sample_reads(indices).take()

    def sample_reads(self, indices: Sequence[int] | Indices) -> Reads[list[Sample]]:
        """Returns the reads of `read`, which may be made ahead of use."""
        return self._reads(indices, read_samples, partial(joined_samples, len(indices)))

    def read_columns(self, indices: Sequence[int] | Indices) -> Batch:
        """Returns the same samples by field: an array if all values have one shape, else a list.

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
        take, out = Strip(self.read_memory).take, out or {}

        return self._reads(
            indices, partial(read_columns, take=take, out=out), partial(joined_columns, self.schema, len(indices), out)
        )

    def _reads(
        self,
        indices: Sequence[int] | Indices,
        read: Callable[[list[Visit]], list[V]],
        join: Callable[[list[tuple[Indices, V]]], R],
    ) -> Reads[R]:
        """Returns reads that call `read` for the shards, their records and rows; `join` gets rows and values."""

        def read_rows(rows: Rows | None) -> list[tuple[Indices, V]]:
            self.clock.add("read_bytes", (len(indices) if rows is None else len(rows)) * self.sample_bytes)
            values: list[tuple[Indices, V]] = []
            for visited in self._visits(indices, rows):
                values += zip([visit.rows for visit in visited], read(visited), strict=True)
            return values

        def cut() -> list[Rows]:
            return pieces(self.numbers(indices), self.sample_bytes)

        return Reads(read_rows, join, cut, len(indices) * self.sample_bytes, self.pace)

    @cached_property
    def sample_bytes(self) -> int:
        """The mean size of a sample, in bytes."""
        return self.manifest.sample_bytes

    def keep_memory(self, num_batches: int, batch_size: int) -> None:
        """Keeps memory for a number of batches that live at a time, and for the records that they are made of."""
        batch_bytes = batch_size * self.sample_bytes
        self.memory.limit = num_batches
        self.read_memory.limit = num_batches * (2 + batch_bytes // PIECE_BYTES)

    def prefetch_hint(self, indices: Sequence[int] | Indices) -> None:
        """Opens the shards of samples and asks the system to prefetch their records.

        Raises:
            IndexError, CorruptRecordError, StorageError: as `read`.
        """
        in_memory = True
        for visited in self._visits(indices):
            for visit in visited:
                in_memory &= visit.shard.prefetch_hint(visit.records)
        in_memory &= self.filling is None
        self._spared = self._useless_hints = min(2 * self._useless_hints + 1, _MOST_SPARED) if in_memory else 0

    def hint(self, indices: Indices) -> Callable[[], None] | None:
        """Returns a call of `prefetch_hint`; mostly None where the last ones found all in memory."""
        if self._spared:
            self._spared -= 1
            return None
        return partial(self.prefetch_hint, indices)

    def _visits(self, indices: Sequence[int] | Indices, rows: Rows | None = None) -> Iterator[list[Visit]]:
        """Yields the visits of the shards that hold the samples, or those of `rows`."""
        numbers = self.numbers(indices if rows is None else np.asarray(indices)[rows])
        return visits(self._pool, self._offsets, numbers, np.arange(len(numbers)) if rows is None else rows)

    def numbers(self, indices: Sequence[int] | Indices) -> Indices:
        """Returns indices as numbers from 0; raises as `number`."""
        is_array = isinstance(indices, np.ndarray) and indices.dtype == np.int64
        if is_array and ((array := np.asarray(indices)).view(np.uint64) < len(self)).all():  # -1 is a large one there
            return array
        return np.array([self.number(index) for index in indices], dtype=np.int64)

    @cached_property
    def _offsets(self) -> Indices:
        return np.array(self.manifest.offsets, dtype=np.int64)

    def expect(self, coming: Iterable[Step]) -> None:
        """Sends the order in which these batches use the shards to the folder's filler, from a thread of its own."""
        if (filling := self.filling) is not None:
            order = partial(first_uses, coming, self._offsets)
            with suppress(MissingError):  # it is a hint
                started(lambda: filling.expect(order()), "dlio-order")

    @property
    def fillings(self) -> list[Filling]:
        """Who fills the folders that are read."""
        return [] if self.filling is None else [self.filling]

    def damage(self, index: int, problem: str) -> CorruptRecordError:
        """Returns the error that names the file, record, offset and key of sample `index`."""
        number, record = self.locate(index)
        with self._pool.shard(number) as shard:
            path, offset = shard.locate(record)
            return CorruptRecordError(path, f"sample {shard.key(record)!r}: {problem}", record=record, offset=offset)

    def close(self) -> None:
        """Closes all files; they are opened again on demand."""
        self._pool.close()
        self.memory.clear()
        self.read_memory.clear()
