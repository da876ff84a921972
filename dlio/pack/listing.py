"""Listing and Source: all samples of an input by name, size and label, before any of them is read."""

from __future__ import annotations

import math
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from dlio.errors import SourceError
from dlio.pack.keys import Keys
from dlio.sample import IMAGE_CLASSIFICATION, Field, Sample, Schema

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Listing:
    """The samples of a source, in its order, without their content; picklable.

    Attributes:
        schema: the fields that the samples will have.
        keys: n keys, all different.
        num_bytes: int64 of shape (n,): how much is to be read for each; 0 where that is unknown.
        columns: what is known of each sample before reading it, its label for instance; n rows each.
        image_fields: the fields that hold encoded images, whose headers are checked when they are packed.
    """

    schema: Schema
    keys: Keys
    num_bytes: Array
    columns: Mapping[str, Array]
    image_fields: tuple[str, ...] = ("image",)

    def __len__(self) -> int:
        return len(self.keys)

    def take(self, indices: Array) -> Listing:
        """Returns the samples numbered `indices`, an array of whole numbers, in that order."""
        columns = {name: values[indices] for name, values in self.columns.items()}
        return Listing(self.schema, self.keys.take(indices), self.num_bytes[indices], columns, self.image_fields)


class Source(Protocol):
    """Where samples come from; picklable and small, since each worker gets a copy."""

    @property
    def name(self) -> str:
        """The kind of source, as on the command line."""

    @property
    def path(self) -> Path:
        """What was given to the source: a folder or a list."""

    def listing(self) -> Listing:
        """Returns all samples; called once, on one process.

        Raises:
            SourceError: the input is empty or damaged, a key occurs twice, a label is missing or no number.
            StorageError: it cannot be read.
        """

    def reader(self, listing: Listing) -> AbstractContextManager[Callable[[int], Sample]]:
        """Opens what is needed to read the samples of `listing`, a part of what `listing()` has returned.

        The context gives a function that returns the sample in row `index`; called by one thread. It raises SourceError
        where a sample cannot be read or is not what it should be, naming the path.
        """


@contextmanager
def image_file_reader(root: Path, listing: Listing) -> Iterator[Callable[[int], Sample]]:
    """Gives what reads image files whose paths below `root` are their keys, and whose labels are in the listing."""

    def read(index: int) -> Sample:
        key = listing.keys[index]
        fields: dict[str, Any] = {name: values[index] for name, values in listing.columns.items()}
        return Sample(key, {"image": read_file(path_below(root, key))} | fields)

    yield read


def path_below(root: Path, key: str) -> str:
    """Returns the path of the file that a list calls `key`; an absolute one stays as it is."""
    return os.path.join(root, key)  # noqa: PTH118  a Path takes ten times as long, for each of millions of files


def read_file(path: str) -> bytes:
    """Returns the content of a regular file.

    Raises:
        SourceError: it cannot be read, or is a folder, a pipe or a device.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a pipe would wait for its writer
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise SourceError(f"cannot read {path}: it is no regular file: remove it from the input")
            return _read_all(descriptor, status.st_size)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise SourceError(f"cannot read {path}: {error.strerror}: check that it is there and may be read") from error


def _read_all(descriptor: int, num_bytes: int) -> bytes:
    data = os.read(descriptor, num_bytes)
    while len(data) < num_bytes and (more := os.read(descriptor, num_bytes - len(data))):
        data += more
    return data


def image_file_listing(root: Path, names: Iterable[str], labels: Array, class_names: tuple[str, ...]) -> Listing:
    """Returns the listing of image files at `root / name`; labels are int64 or float32, of shape (n, ...).

    Raises:
        SourceError: a name is no key; see `Keys`.
    """
    import numpy as np

    keys = Keys.of(names)
    keys.check_distinct()
    sizes = np.fromiter((file_bytes(path_below(root, key)) for key in keys), dtype="int64", count=len(keys))
    if labels.dtype == "int64" and labels.ndim == 1:
        schema = Schema(IMAGE_CLASSIFICATION.fields, class_names)
    else:
        schema = Schema((("image", Field("bytes")), ("label", Field("float32", labels.shape[1:]))), class_names)
        labels = labels.astype("float32")
    return Listing(schema, keys, sizes, {"label": labels})


def file_bytes(path: str | os.DirEntry[str]) -> int:
    """Returns a file's size in bytes, 0 for one that is not there: reading it will say so."""
    try:
        return os.stat(path).st_size  # noqa: PTH116  Path.stat takes four times as long
    except OSError:
        return 0


def is_number(text: str) -> bool:
    """Tells whether a label is written as a finite number."""
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False
