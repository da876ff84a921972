"""Listing and Source: all samples of an input by name, size and label, before any of them is read."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from dlio.dataset.schema import Sample, Schema
from dlio.errors import SourceError
from dlio.pack.listing.keys import Keys

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]
    Column = array[int] | Array


def take(column: Column, indices: range | Array) -> Column:
    """Returns the rows numbered `indices` of a column; those that follow one another without loading numpy."""
    if isinstance(indices, range):
        return column[indices.start : indices.stop]
    import numpy as np

    return np.asarray(column)[indices]


@dataclass(frozen=True, slots=True)
class Listing:
    """The samples of a source, in its order, without their content; picklable.

    Attributes:
        schema: the fields that the samples will have.
        keys: n keys, all different.
        num_bytes: int64 of shape (n,): how much is to be read for each; 0 where that is unknown.
        columns: what is known of each sample before reading it, its label for instance; a `Column` of n rows each.
        image_fields: the fields that hold encoded images, whose headers are checked when they are packed.
        bounds: where the shards of a packed data set begin, and its end, int64; None for anything else.
        versions: int64 of shape (n,): another number once the sample's input was changed, as far as that shows without
            reading it, such as the time of the change; None where nothing is known.
        refused: the entries of the input that cannot be packed, whatever they hold, each with the reason.
    """

    schema: Schema
    keys: Keys
    num_bytes: Column
    columns: Mapping[str, Any]
    image_fields: tuple[str, ...] = ("image",)
    bounds: Column | None = None
    versions: Column | None = None
    refused: Sequence[tuple[str, str]] = ()

    def __len__(self) -> int:
        return len(self.keys)

    def take(self, indices: range | Array) -> Listing:
        """Returns what is needed to read the samples numbered `indices`, whole numbers, in that order."""
        columns = {name: take(values, indices) for name, values in self.columns.items()}
        return Listing(self.schema, self.keys.take(indices), take(self.num_bytes, indices), columns, self.image_fields)

    def check_whole(self) -> None:
        """Makes sure that no entry was refused.

        Raises:
            SourceError: one was; says why, and how many others were.
        """
        if self.refused:
            others = len(self.refused) - 1
            more = f" ({others} more {'entries are' if others > 1 else 'entry is'} refused)" if others else ""
            raise SourceError(f"{self.refused[0][1]}; or leave such entries out with --on-error skip{more}")


class Source(Protocol):
    """Where samples come from; picklable and small, since each worker gets a copy."""

    @property
    def name(self) -> str:
        """The kind of source, as on the command line."""

    @property
    def path(self) -> Path:
        """What was given to the source: a folder or a list."""

    def listing(self) -> Listing:
        """Returns all samples, and what is refused: an odd name, a key that occurs twice, a label that is no number.

        Called once, on one process.

        Raises:
            SourceError: the input is empty or damaged.
            StorageError: it cannot be read.
        """

    def reader(self, listing: Listing) -> AbstractContextManager[Callable[[int], Sample]]:
        """Opens what is needed to read the samples of `listing`, a part of what `listing()` has returned.

        The context gives a function that returns the sample in row `index`; called by one thread. It raises SourceError
        where a sample cannot be read or is not what it should be, naming the path.
        """
