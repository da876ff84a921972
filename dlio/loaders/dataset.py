"""PackedSamples: the samples of a packed data set by number, and whole batches of them as numpy arrays.

The core of every loader; it knows no framework. What it gives for a field:

    image, where there is a transform   uint8 (n, 3, H, W), or (n, H, W, 3)
    number, or array of fixed shape     an array of the field's dtype, (n, *shape); `label` less the label offset
    array whose shape varies            a list of arrays
    bytes, str, lists of them           a list
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from dlio import decoders
from dlio.errors import CorruptRecordError, UsageError
from dlio.images import Transform
from dlio.keyed import derive_each
from dlio.loaders.order import Indices, num_lanes
from dlio.loaders.skips import Skips
from dlio.loaders.stats import Clock
from dlio.manifest import Manifest
from dlio.sample import Sample, Schema
from dlio.shards import ShardPool
from dlio.stage.cache import resolve
from dlio.topology import Topology

IMAGE = "image"
LABEL = "label"

#: One batch: a value for each field, in the schema's order.
Batch = dict[str, Any]


def load_manifest(data: str | Path | Manifest) -> Manifest:
    """Returns `data` itself, or the manifest of the folder that it names: of the copy on this node if one is staged.

    A part of the data set counts only in a job of as many nodes as it was staged to.

    Raises:
        ManifestError, StorageError: as Manifest.load.
        LauncherError: as Topology.from_env.
    """
    if isinstance(data, Manifest):
        return data
    manifest = Manifest.load(resolve(data))
    if any(shard.nodes for shard in manifest.shards) and num_lanes(manifest) != Topology.from_env().num_nodes:
        return Manifest.load(data)
    return manifest


def is_pair(schema: Schema) -> bool:
    """Tells whether samples are pairs (image, label), as image classification in any framework has them."""
    return set(schema) == {IMAGE, LABEL}


@dataclass(frozen=True, slots=True)
class Labelled(Sequence[tuple[str, Any]]):
    """ImageFolder's `samples`: (key, label) of each sample, looked up when asked for."""

    samples: PackedSamples

    def __len__(self) -> int:
        return len(self.samples)

    @overload
    def __getitem__(self, index: int) -> tuple[str, Any]: ...

    @overload
    def __getitem__(self, index: slice) -> list[tuple[str, Any]]: ...

    def __getitem__(self, index: int | slice) -> tuple[str, Any] | list[tuple[str, Any]]:
        """Returns the pair at `index`, or a list of pairs.

        Raises:
            IndexError: there is no such sample.
        """
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        index = self.samples.number(index)
        return self.samples.key(index), self.samples.labels[index].tolist()


class PackedSamples:
    """Reads the samples of a packed data set, in any order.

    Safe for several threads. Picklable, and safe across fork: every process opens its own files.
    """

    def __init__(
        self,
        data: str | Path | Manifest,
        transform: Transform | None = None,
        *,
        upright: bool = False,
        max_skipped: int = 0,
    ) -> None:
        """Opens a data set; its shards are opened when they are needed.

        Args:
            data: the folder that holds `manifest.jsonl`, or a manifest.
            transform: what to make of the field `image`; without one it stays encoded.
            upright: turn images as their EXIF orientation says, which torchvision's ImageFolder does not.
            max_skipped: how many damaged samples `fill` replaces by others of its batch before it raises.

        Raises:
            ManifestError: there is no data set.
            UsageError: there is a transform and no image.
        """
        self.manifest = load_manifest(data)
        self.clock = Clock()
        self.skips = Skips(max_skipped)
        self.transform = transform
        self.upright = upright
        self._pool = ShardPool(self.manifest)
        if transform is not None and IMAGE not in self.schema:
            raise UsageError(f"{self.manifest.root} has no field 'image' to transform, only {sorted(self.schema)}")

    @property
    def schema(self) -> Schema:
        """The fields of every sample."""
        return self.manifest.schema

    def __len__(self) -> int:
        return self.manifest.num_samples

    def number(self, index: int) -> int:
        """Returns `index` as a number from 0, counted from the end if negative.

        Raises:
            TypeError: it is no whole number.
            IndexError: there is no such sample.
        """
        try:
            number = operator.index(index)
        except TypeError:
            raise TypeError(f"sample {index!r} of {len(self)}: expected a whole number") from None
        number += len(self) if number < 0 else 0
        if not 0 <= number < len(self):
            raise IndexError(f"sample {index} of {len(self)} in {self.manifest.root}")
        return number

    def key(self, index: int) -> str:
        """Returns the key of sample `index`.

        Raises:
            IndexError: there is no such sample.
            CorruptRecordError, StorageError: as `read`.
        """
        number, record = self.manifest.locate(self.number(index))
        with self._pool.shard(number) as shard:
            return shard.key(record)

    @cached_property
    def labels(self) -> npt.NDArray[Any]:
        """The field `label` of all samples, less the label offset: of its dtype and shape (n, *shape), read-only.

        Raises:
            UsageError: there is no such field, or not the same number of values in every sample.
            CorruptRecordError, StorageError: as `read`.
        """
        if LABEL not in self.schema or not self.schema[LABEL].is_fixed:
            raise UsageError(f"{self.manifest.root} has no field 'label' of numbers, only {self.schema.types()}")
        kind = self.schema[LABEL]
        columns = [np.empty((0, *(dim or 0 for dim in kind.shape)), kind.dtype)]  # for a data set without shards
        for number in range(len(self.manifest.shards)):
            with self._pool.shard(number) as shard:
                columns.append(shard.column(LABEL))
        labels = self.class_indices(np.concatenate(columns))
        labels.flags.writeable = False
        return labels

    def class_indices(self, labels: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Returns labels as stored, less the label offset; same dtype and shape."""
        return np.asarray(labels - labels.dtype.type(self.schema.label_offset))

    def read(self, indices: Sequence[int] | Indices) -> list[Sample]:
        """Returns samples as they are stored, in the order asked for; reads go shard by shard, in the shard's order.

        Raises:
            IndexError: there is no such sample.
            CorruptRecordError: a record differs from what was packed; names file, record, offset and key.
            StorageError: a shard is missing or cannot be read.
        """
        samples: dict[int, Sample] = {}
        places = sorted({self.number(index) for index in indices})
        start = 0
        while start < len(places):
            shard_number, _ = self.manifest.locate(places[start])
            first, end = self.manifest.offsets[shard_number : shard_number + 2]
            stop = start + sum(1 for place in places[start:] if place < end)
            with self._pool.shard(shard_number) as shard:
                for place in places[start:stop]:
                    samples[place] = shard.read(place - first)
            start = stop
        return [samples[self.number(index)] for index in indices]

    def batch(self, indices: Sequence[int] | Indices, key: int, *, channels_last: bool = False) -> Batch:
        """Returns samples as arrays, a value for each field.

        Args:
            indices: n samples.
            key: names the random choices of the transform: equal keys and samples give equal batches.
            channels_last: give images as (n, H, W, 3).

        Raises:
            IndexError, CorruptRecordError, StorageError: as `read`; CorruptRecordError also for an image that cannot
                be decoded.
        """
        batch = self.empty(len(indices), channels_last=channels_last)
        self.fill(batch, 0, indices, key)
        return batch

    def empty(self, size: int, *, channels_last: bool = False) -> Batch:
        """Returns a batch of `size` rows to be filled."""
        batch: Batch = {}
        for name, kind in self.schema.fields:
            if name == IMAGE and self.transform is not None:
                pixels = self.transform.output_size
                batch[name] = np.empty((size, *pixels, 3) if channels_last else (size, 3, *pixels), dtype=np.uint8)
            elif kind.is_fixed:
                batch[name] = np.empty((size, *(dim or 0 for dim in kind.shape)), dtype=kind.dtype)
            else:
                batch[name] = [None] * size
        return batch

    def fill(self, batch: Batch, start: int, indices: Sequence[int] | Indices, key: int) -> list[int]:
        """Writes samples into the rows from `start` and returns the rows whose samples were damaged and replaced.

        Several threads may fill different rows of one batch.

        Raises:
            IndexError, CorruptRecordError, StorageError: as `batch`.
        """
        with self.clock.stage("read"):
            samples, damaged = self._read_good(indices)
        rows = slice(start, start + len(samples))
        for name, column in batch.items():
            values = [sample.fields[name] for sample in samples]
            if name == IMAGE and self.transform is not None:
                with self.clock.stage("decode"):
                    damaged |= self._decode(values, indices, key, column[rows])
            elif name == LABEL and isinstance(column, np.ndarray):
                column[rows] = self.class_indices(np.array(values, dtype=column.dtype))
            else:
                column[rows] = values
        return [start + row for row in _replace(batch, rows, damaged)]

    def _read_good(self, indices: Sequence[int] | Indices) -> tuple[list[Sample], dict[int, CorruptRecordError]]:
        """Returns the samples, a good one in the place of each damaged one, and what is wrong with those, by row."""
        try:
            return self.read(indices), {}
        except CorruptRecordError:
            if not self.skips.limit:
                raise
        samples: list[Sample | None] = [None] * len(indices)
        damaged = {}
        for row, index in enumerate(indices):
            try:
                samples[row] = self.read([index])[0]
            except CorruptRecordError as error:
                self.skips.note(error)
                damaged[row] = error
        good = next((sample for sample in samples if sample is not None), None)
        if good is None:
            raise next(iter(damaged.values()))
        return [sample or good for sample in samples], damaged

    def _decode(
        self, pictures: list[decoders.Picture], indices: Sequence[int] | Indices, key: int, out: npt.NDArray[np.uint8]
    ) -> dict[int, CorruptRecordError]:
        """Decodes images into the rows of `out` and returns what is wrong with some, by row."""
        assert self.transform is not None
        keys = derive_each(key, np.asarray(indices, dtype=np.int64))
        problems = decoders.decode_batch(pictures, self.transform, keys, out, upright=self.upright)
        damaged = {row: self.damage(int(indices[row]), problem) for row, problem in problems.items()}
        for error in damaged.values():
            self.skips.note(error)
        return damaged

    def damage(self, index: int, problem: str) -> CorruptRecordError:
        """Returns the error that names the file, record, offset and key of sample `index`."""
        number, record = self.manifest.locate(self.number(index))
        with self._pool.shard(number) as shard:
            path, offset = shard.locate(record)
            return CorruptRecordError(path, f"sample {shard.key(record)!r}: {problem}", record=record, offset=offset)

    def close(self) -> None:
        """Closes all files; they are opened again when needed."""
        self._pool.close()


def paired(batch: Batch, schema: Schema) -> Any:
    """Returns (image, label, and what else there is) where samples are pairs of these two, else the batch itself."""
    if not is_pair(schema):
        return batch
    return batch[IMAGE], batch[LABEL], *(value for name, value in batch.items() if name not in schema)


def _replace(batch: Batch, rows: slice, damaged: Mapping[int, CorruptRecordError]) -> list[int]:
    """Copies the first good one of `rows` over the damaged ones, and returns which these are.

    Raises:
        CorruptRecordError: there is no good one.
    """
    if not damaged:
        return []
    good = next((row for row in range(rows.stop - rows.start) if row not in damaged), None)
    if good is None:
        raise next(iter(damaged.values()))
    for column in batch.values():
        for row in damaged:
            column[rows.start + row] = column[rows.start + good]
    return list(damaged)
