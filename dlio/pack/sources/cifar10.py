"""CIFAR-10's Python batches: `data_batch_1` to `data_batch_5` for training, `test_batch`, and `batches.meta`.

A batch is a pickled dictionary with `data`, uint8 of shape (n, 3072), each row the red, green and blue plane of 32 x 32
pixels, and `labels`. A pickle is a program, so only the parts of numpy arrays and numbers are admitted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dlio.dataset.schema import Fields, Sample, Schema
from dlio.errors import SourceError, UsageError
from dlio.io.files import read_regular
from dlio.io.random_access import RandomAccessFile
from dlio.pack.listing.base import Listing, read_ahead
from dlio.pack.listing.image_files import file_state
from dlio.pack.listing.keys import Keys
from dlio.pack.listing.plain_pickles import Stored, load

TRAIN = tuple(f"data_batch_{number}" for number in range(1, 6))
TEST = ("test_batch",)
SIDE = 32
ROW_BYTES = 3 * SIDE * SIDE
_MAX_BATCH_BYTES = 256 << 20  # the real ones have 31 MB


def cifar10(path: str | Path, split: str = "train", form: str = "png") -> Cifar10:
    """Returns the images of one split.

    Args:
        path: the folder `cifar-10-batches-py`.
        split: the 50,000 training or the 10,000 test images.
        form: `png` packs each image as a PNG file, `raw` as an array, uint8[32,32,3].

    Raises:
        UsageError: `split` or `form` is unknown.
    """
    if split not in ("train", "test") or form not in ("png", "raw"):
        raise UsageError(f"cifar10 has split=train or test and form=png or raw, found split={split} form={form}")
    return Cifar10(Path(path).absolute(), split, form)


open_source = cifar10


def recognises(path: Path) -> bool:
    """Returns whether `path` is a folder with a training or test batch."""
    return (path / TEST[0]).is_file() or (path / TRAIN[0]).is_file()


@dataclass(frozen=True, slots=True)
class Cifar10:
    """See `cifar10`."""

    path: Path
    split: str
    form: str
    name: str = "cifar10"

    def listing(self) -> Listing:
        """Returns the images in the batches' order; keys are `data_batch_1/00042`."""
        batches = [_Batch.load(self.path / name) for name in (TRAIN if self.split == "train" else TEST)]
        names = self._class_names()
        labels = np.concatenate([batch.labels for batch in batches])
        if labels.min() < 0 or (names and labels.max() >= len(names)):
            raise SourceError(f"{self.path}: labels from {labels.min()} to {labels.max()} for {len(names)} classes")
        image = "bytes" if self.form == "png" else f"uint8[{SIDE},{SIDE},3]"
        columns = {
            "label": labels,
            "batch": np.repeat(np.arange(len(batches)), [len(batch.labels) for batch in batches]),
            "offset": np.concatenate([batch.offset + np.arange(len(batch.labels)) * ROW_BYTES for batch in batches]),
        }
        keys = Keys.of(f"{batch.path.name}/{row:05d}" for batch in batches for row in range(len(batch.labels)))
        sizes = np.full(len(keys), ROW_BYTES, dtype="int64")
        schema = Schema.of({"image": image, "label": "int64"}, names)
        changed = np.array([file_state(str(batch.path))[1] for batch in batches], dtype="int64")
        images = ("image",) if self.form == "png" else ()
        return Listing(schema, keys, sizes, columns, images, versions=changed[columns["batch"]])

    def _class_names(self) -> tuple[str, ...]:
        meta = self.path / "batches.meta"
        names = _unpickle(meta)[0].get("label_names", []) if meta.is_file() else []
        return tuple(name.decode(errors="replace") if isinstance(name, bytes) else str(name) for name in names)

    @contextmanager
    def reader(self, listing: Listing) -> Iterator[Callable[[int], Sample]]:
        """Gives a function that reads one image with its class index, from its offset in the batch file."""
        from dlio.codecs import pillow

        names = TRAIN if self.split == "train" else TEST
        of, offsets = (listing.columns[name].tolist() for name in ("batch", "offset"))
        batches = {number: RandomAccessFile(self.path / names[number]) for number in set(of)}

        def planes(index: int) -> Fields:
            return {"image": batches[of[index]].read(offsets[index], ROW_BYTES)}

        with read_ahead(listing, planes, *batches.values()) as stored:

            def read(index: int) -> Sample:
                sample = stored(index)
                row = np.frombuffer(sample.fields["image"], dtype="uint8")
                pixels = np.ascontiguousarray(row.reshape(3, SIDE, SIDE).transpose(1, 2, 0))
                image = pillow.encoded(pixels) if self.form == "png" else pixels
                return Sample(sample.key, sample.fields | {"image": image})

            yield read


@dataclass(frozen=True, slots=True)
class _Batch:
    """The labels of a batch, int64 of shape (n,), and where in the file its pixels begin."""

    path: Path
    labels: NDArray[np.int64]
    offset: int

    @classmethod
    def load(cls, path: Path) -> _Batch:
        batch, content = _unpickle(path)
        stored, labels = batch.get("data"), batch.get("labels")
        data = stored.values if isinstance(stored, Stored) else None
        if data is None or data.dtype != "uint8" or data.shape[1:] != (ROW_BYTES,):
            raise SourceError(f"{path} has no array 'data' of uint8 and shape (n, {ROW_BYTES})")
        if not isinstance(labels, list) or len(labels) != len(data) or not all(map(_is_label, labels)):
            raise SourceError(f"{path} has no list 'labels' of {len(data)} whole numbers")
        offset = content.find(data.tobytes())
        if offset < 0:
            problem = "does not keep its pixels in one piece: it is not one of CIFAR-10's own batches"
            raise SourceError(f"{path} {problem}, or was pickled again by a protocol before 3: pickle it by 3 or later")
        return cls(path, np.array(labels, dtype="int64"), offset)


def _is_label(value: object) -> bool:
    return type(value) is int and abs(value) < 2**31


def _unpickle(path: Path) -> tuple[dict[str, Any], bytes]:
    """Returns the dictionary of a batch, with text as keys, and the file's content."""
    content = read_regular(path, _MAX_BATCH_BYTES)
    if len(content) > _MAX_BATCH_BYTES:
        raise SourceError(f"{path} has more than {_MAX_BATCH_BYTES:,} bytes: it is not one of CIFAR-10's batches")
    try:
        batch = load(content)
    except Exception as error:  # a damaged pickle can raise anything
        raise SourceError(f"{path} is not a batch of CIFAR-10: {error}") from None
    if not isinstance(batch, dict):
        raise SourceError(f"{path} is not a batch of CIFAR-10: it holds no dictionary")
    return {key.decode(errors="replace") if isinstance(key, bytes) else str(key): batch[key] for key in batch}, content
