"""PackedDataset: a packed data set with the interface of torchvision's ImageFolder."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, overload

import numpy as np
import torch
from torch.utils.data import ConcatDataset, Dataset, Subset

from dlio.codecs import decoders
from dlio.codecs.decode_ready import restored
from dlio.dataset.manifest import in_a_line
from dlio.dataset.schema import Array
from dlio.errors import DataError, UsageError
from dlio.images import Transform, Transforms, composed
from dlio.loaders import batches
from dlio.loaders.batches import is_pair
from dlio.loaders.dataset import PackedSamples
from dlio.loaders.mixture import Data
from dlio.loaders.opened import Opened, joined_data
from dlio.loaders.prefetch.reads import Reads
from dlio.loaders.sampling.order import Indices
from dlio.targets import IMAGE, LABEL, check_stay

#: What `PackedDataset(...)[0]` is: (image, label) if these are the fields, else all fields by name (docs/loaders.md).
Item = tuple[Any, Any] | dict[str, Any]
#: What dlio's DataLoader yields: (images, labels), with `end="mask"` also a bool tensor, or a dict of all fields.
Batch = tuple[torch.Tensor, torch.Tensor] | tuple[torch.Tensor, torch.Tensor, torch.Tensor] | dict[str, Any]


@dataclass(frozen=True, slots=True)
class Labelled(Sequence[tuple[str, Any]]):
    """ImageFolder's `samples`: (key, label) of each sample, looked up on demand."""

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
            IndexError: `index` is out of range.
        """
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        index = self.samples.numbering.number(index)
        return self.samples.key(index), self.samples.labels[index].tolist()


class PackedDataset(Dataset[Any]):
    """The samples of a packed data set by number, for torch's DataLoader, its samplers, and trainers built on them.

    `dataset[i]` is (image, label) if the fields are `image` and `label`, else a dict of all fields. With a transform of
    `dlio.images` the image is a uint8 tensor (3, height, width). Any other callable gets the PIL image in RGB, and its
    result is used. Without a transform the image is that PIL image, as in ImageFolder. The label is an int (the class
    index, without the label offset) or a tensor. Other numbers and arrays are tensors. Bytes and text are unchanged.

    Random choices depend on torch's random state and the sample's number, so they differ between epochs, workers and
    ranks. In dlio's own DataLoader they depend on seed, epoch and sample instead.

    Attributes:
        root: the folder of the data set.
        manifest: its manifest.
        transform, target_transform: as given.
        classes: the class names.
        class_to_idx: the index of each class name.

    Safe for several threads. Picklable, and safe across fork: every process opens its own files.
    """

    def __init__(
        self,
        root: Data,
        transform: Transforms | Callable[[Any], Any] | None = None,
        target_transform: Callable[[Any], Any] | None = None,
        *,
        fields: Sequence[str] | None = None,
        cache: str | Path | bool | None = None,
        upright: bool = False,
        max_skipped: int = 0,
    ) -> None:
        """Opens a data set; shards are opened on demand.

        Args:
            root: the folder or URL that holds `manifest.jsonl`, a manifest (as `dlio.stage` returns it), or a `Mixture`
                of these.
            transform: applied to each image: one of `dlio.images`, or a list of these, or any function of a PIL image.
            target_transform: applied to each label.
            fields: the names of the fields that samples have; by default all.
            cache: the node-local folder to stage to while the data set is read; True chooses one, as `dlio.stage` does.
            upright: rotate images, their boxes and masks by their EXIF orientation, unlike ImageFolder.
            max_skipped: how many damaged samples each process replaces by others of their batch, with a warning in the
                log, before it raises; for transforms of `dlio.images`.

        Raises:
            ManifestError: the folder holds no data set.
            UsageError: a transform is not a transform, or one of `dlio.images` is given, but samples have no field
                `image`; or boxes or masks would not move with the image.
        """
        transform = composed(transform)
        if isinstance(transform, type) and isinstance(transform, Transform):
            raise UsageError(f"transform={transform.__name__} is a class: give an instance, such as CenterCrop(224)")
        for name, given in {"transform": transform, "target_transform": target_transform}.items():
            if given is not None and not (callable(given) or isinstance(given, Transform)):
                raise UsageError(f"{name}={given!r} is neither callable nor a transform of dlio.images")
        plan = transform if isinstance(transform, Transform) else None
        self.packed = PackedSamples(root, plan, fields=fields, cache=cache, upright=upright, max_skipped=max_skipped)
        if transform is not plan:
            check_stay(self.packed.schema, transform, self.packed.manifest.root)
        self.manifest = self.packed.manifest
        self.root = str(self.manifest.root)
        self.transform = transform
        self.target_transform = target_transform
        self.classes = list(self.manifest.class_names)
        self.class_to_idx = {name: index for index, name in enumerate(self.classes)}

    def __len__(self) -> int:
        return len(self.packed)

    def __repr__(self) -> str:
        return f"<PackedDataset of {in_a_line(self.manifest)}; transform: {self.transform}>"

    @property
    def targets(self) -> Array:
        """The labels of all samples, an array of shape (n, ...); read from the tables of the shards, not from images.

        Raises:
            UsageError: the samples have no labels.
            CorruptRecordError, StorageError: as `__getitem__`.
        """
        return self.packed.labels

    @property
    def samples(self) -> Sequence[tuple[str, Any]]:
        """(key, label) of each sample, looked up on demand."""
        return Labelled(self.packed)

    imgs = samples

    def __getitem__(self, index: int) -> Any:
        """Returns one sample.

        Raises:
            IndexError: `index` is out of range.
            CorruptRecordError: the record is damaged, or its image cannot be decoded; names file, record, offset and
                key.
            StorageError: a shard is missing or cannot be read.
        """
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Item]:
        """Returns several samples, read shard by shard and decoded as a batch; called by torch's DataLoader.

        Raises:
            IndexError, CorruptRecordError, StorageError: as `__getitem__`.
        """
        return self.items(indices, int(torch.empty((), dtype=torch.int64).random_()))

    def items(self, indices: Sequence[int] | Indices, key: int, reads: Reads[Any] | None = None) -> list[Item]:
        """Returns several samples; `key` seeds the random choices of a transform of `dlio.images`.

        Args:
            indices: n samples.
            key: see above.
            reads: the reads of their columns, if they may have begun.

        Raises:
            IndexError, CorruptRecordError, StorageError: as `__getitem__`.
        """
        reads = reads or self.packed.column_reads(indices)
        if self.packed.transform is None:
            columns = reads.take()
            return [
                self._item({name: self._raw(int(index), columns[name][row], name) for name in self.packed.schema})
                for row, index in enumerate(indices)
            ]
        batch = tensors(batches.make(self.packed, indices, key, reads=reads))
        return [
            self._item({name: _value(column, row) for name, column in batch.items()}) for row in range(len(indices))
        ]

    @property
    def makes_images(self) -> bool:
        """Whether images are Pillow's, of any size."""
        return self.transform is None and IMAGE in self.packed.schema and self.packed.schema[IMAGE].dtype == "bytes"

    @property
    def makes_arrays(self) -> bool:
        """Whether whole batches can be made without the single samples."""
        return self.transform is self.packed.transform and self.target_transform is None

    def _raw(self, index: int, value: Any, name: str) -> Any:
        """Returns a value as it is stored, as that of an item."""
        value = value.item() if isinstance(value, np.generic) else value
        if name == IMAGE:
            try:
                image = decoders.decode_rgb(value, upright=self.packed.upright)
            except DataError as error:
                raise self.packed.damage(index, str(error)) from error
            return self.transform(image) if callable(self.transform) else image
        if name == LABEL and self.packed.schema[name].is_fixed:
            return _value(torch.from_numpy(self.packed.class_indices(np.asarray(value))[None]), 0)
        try:
            return _tensor(restored(batches.as_bytes(value)))
        except DataError as error:
            raise self.packed.damage(index, str(error)) from error

    def _item(self, fields: dict[str, Any]) -> Item:
        if LABEL in fields and self.target_transform is not None:
            fields[LABEL] = self.target_transform(fields[LABEL])
        return (fields[IMAGE], fields[LABEL]) if is_pair(self.packed.schema) else fields


def chosen_part(dataset: Any, *, ascending: bool) -> Any:
    """Returns a PackedDataset for Subsets and ConcatDatasets of some, however nested; anything else unchanged.

    With `ascending` the samples of Subsets are in the order of the shards, else as the Subsets have them.

    Raises:
        UsageError: joined data sets differ in their fields or transforms.
        IndexError: a row is out of range.
    """
    if not isinstance(dataset, Subset | ConcatDataset) or (found := _samples_in(dataset)) is None:
        return dataset
    first, samples = found
    part = copy.copy(first)
    part.packed = first.packed.over(samples.ascending() if ascending else samples)
    part.manifest = part.packed.manifest
    return part


def _samples_in(dataset: Any) -> tuple[PackedDataset, Opened] | None:
    """Returns the first PackedDataset in it, and the samples that it has; None if it is another.

    Raises:
        UsageError, IndexError: as `chosen_part`.
    """
    if isinstance(dataset, PackedDataset):
        return dataset, dataset.packed.opened
    if isinstance(dataset, Subset) and (found := _samples_in(dataset.dataset)):
        return found[0], found[1].chosen(np.asarray(dataset.indices, dtype=np.int64))
    parts = list(map(_samples_in, dataset.datasets)) if isinstance(dataset, ConcatDataset) else []
    known = [part for part in parts if part]
    if not known or len(known) < len(parts):
        return None
    first = known[0][0]
    for other, _ in known:
        if _changes(other) != _changes(first):
            problem = f"{first.root} and {other.root} have different transforms, or only one is upright"
            raise UsageError(f"{problem}: give both the same to join them")
    return first, joined_data([samples for _, samples in known])


def _changes(dataset: PackedDataset) -> tuple[Any, Any, bool]:
    return dataset.transform, dataset.target_transform, dataset.packed.upright


def tensors(batch: dict[str, Any]) -> dict[str, Any]:
    """Returns the batch with tensors instead of arrays, over the same memory, and bytes instead of views."""
    return {name: _tensor(value) for name, value in batches.with_bytes(batch).items()}


def _tensor(value: Any) -> Any:
    if isinstance(value, list):
        return [_tensor(item) for item in value]
    return torch.from_numpy(value) if isinstance(value, np.ndarray) else value


def _value(column: Any, row: int) -> Any:
    """Returns one row; a scalar as a Python number, as default_collate expects for labels."""
    value = column[row]
    return value.item() if isinstance(value, torch.Tensor) and value.ndim == 0 else value
