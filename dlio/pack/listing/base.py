"""Listing and Source: all samples of an input by name, size and label, before any of them is read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from os import PathLike
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from dlio.dataset.sample_group import SampleGroup
from dlio.dataset.schema import Array, Fields, Sample, Schema
from dlio.errors import SourceError
from dlio.io.files import Closeable
from dlio.pack import pace
from dlio.pack.listing.keys import Keys
from dlio.pack.prefetch import Prefetcher

#: A column of a listing: numbers of any type, one row for each sample.
Column = Array
Numbers = NDArray[np.int64]
Refused = list[tuple[str, str]]  # the names of entries that cannot be packed, each with the reason


def take(column: Column, indices: range | Numbers) -> Column:
    """Returns the rows `indices` of a column; a range of step 1 gives a view."""
    return column[indices.start : indices.stop] if isinstance(indices, range) else column[indices]


def rows(column: Column) -> Any:
    """Returns the rows of a column as values of samples: numbers and texts of Python, or arrays."""
    return column.tolist() if column.ndim == 1 else column


@dataclass(frozen=True, slots=True)
class Listing:
    """The samples of a source, in its order, without their content; picklable.

    Attributes:
        schema: the fields that the samples will have.
        keys: n keys, all different.
        num_bytes: int64 of shape (n,): the number of bytes to read for each sample; 0 if unknown.
        columns: what is known of each sample before it is read, such as its label; n rows each.
        image_fields: the fields that hold encoded images; packing checks the headers of these images.
        bounds: for a packed data set, the first sample of each shard, and the number of samples, int64; else None.
        versions: int64 of shape (n,): a number that changes when the sample's input changes, as far as can be seen
            without reading it, such as the time of the last change; None if unknown.
        refused: the entries of the input that cannot be packed, each with the reason.
        in_order: whether the samples can be read in this order only, since they lie in blocks that are read whole.
        gives_several: whether a row gives any number of samples; the keys are then those of rows.
        left_out: as text, the files of the input that are not taken for images; '' for none.
    """

    schema: Schema
    keys: Keys
    num_bytes: Numbers
    columns: Mapping[str, Column]
    image_fields: tuple[str, ...] = ("image",)
    bounds: Numbers | None = None
    versions: Numbers | None = None
    refused: Sequence[tuple[str, str]] = ()
    left_out: str = ""
    in_order: bool = False
    gives_several: bool = False

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def known(self) -> dict[str, Any]:
        """The values of the fields that are known before a sample is read, by name."""
        return {name: rows(values) for name, values in self.columns.items() if name in self.schema}

    def take(self, indices: range | Numbers) -> Listing:
        """Returns a listing of the samples `indices`, in that order, with all that is needed to read them."""
        columns = {name: take(values, indices) for name, values in self.columns.items()}
        return Listing(self.schema, self.keys.take(indices), take(self.num_bytes, indices), columns, self.image_fields)

    def check_whole(self) -> None:
        """Raises SourceError if an entry was refused: the reason, and the number of other refused entries."""
        if self.refused:
            others = len(self.refused) - 1
            more = f" ({others} more {'entries are' if others > 1 else 'entry is'} refused)" if others else ""
            raise SourceError(f"{self.refused[0][1]}; or leave such entries out with --on-error skip{more}")


class Source(Protocol):
    """The origin of samples; picklable and small, since each worker gets a copy."""

    @property
    def name(self) -> str:
        """The kind of source, as on the command line."""

    @property
    def path(self) -> str | PathLike[str]:
        """The input given to the source: a folder or a list, or a URL without user and password."""

    def listing(self) -> Listing:
        """Returns all samples, and the refused entries: invalid names, repeated keys, labels that are not numbers.

        Called once, in one process.

        Raises:
            SourceError: the input is empty or damaged.
            StorageError: it cannot be read.
        """

    def reader(self, listing: Listing) -> AbstractContextManager[Callable[[int], Sample]]:
        """Opens the files needed to read the samples of `listing`, which is a part of the result of `listing()`.

        The context gives a function that returns the sample in row `index`; one thread calls it. The function raises
        SourceError, with the path, if a sample cannot be read or is not as expected.
        """


def read_ahead(listing: Listing, read: Callable[[int], Fields], *opened: Closeable) -> Prefetcher[Sample]:
    """Returns a reader of samples: `read` gives the fields of a row, by one operation, that the listing does not know.

    It closes what is `opened`.
    """
    keys, num_bytes, known = listing.keys, listing.num_bytes.tolist(), listing.known.items()

    def sample(index: int) -> Sample:
        pace.spend(1, num_bytes[index])
        return Sample(keys[index], read(index) | {name: values[index] for name, values in known})

    return Prefetcher(sample, num_bytes, len(keys), opened=opened)


@runtime_checkable
class FileSource(Protocol):
    """An optional part of a Source: a sample is a file, the field `image`, and its path below a folder is its key."""

    @property
    def folder(self) -> str | PathLike[str]:
        """The folder, or a URL."""


@runtime_checkable
class GroupReader(Protocol):
    """An optional part of a source's reader: samples that were read by one call are handed out by one call."""

    def group(self, index: int) -> SampleGroup | None:
        """Returns the samples from row `index` on that are already read, None if there are none."""


@runtime_checkable
class SizedSource(Protocol):
    """An optional part of a Source: it can find the exact sizes of all samples before they are read."""

    def sizes(self, listing: Listing) -> Numbers | None:
        """Returns the sizes of all values that are not in the listing's columns, in bytes; None if it cannot.

        Raises:
            SourceError, CorruptRecordError, StorageError: as `Source.listing`.
        """


@runtime_checkable
class SeveralReader(Protocol):
    """What a source's reader has if a row of its listing gives any number of samples (`Listing.gives_several`)."""

    def samples(self, index: int) -> Iterator[Sample]:
        """Yields the samples of row `index`, each with a key; raises as the source's function."""
