"""Files that are read while they arrive: what readers ask of the process that fills a folder.

`RandomAccessFile` turns to the folder that `opening` has named, if a file is not there. So a format's reader needs to
know nothing of it, and a file that exists is opened and read as usual.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

from dlio.errors import StorageError

if TYPE_CHECKING:
    from dlio.dataset.manifest import Manifest

Numbers = npt.NDArray[np.int64]

#: Allocates memory of this many bytes, with arbitrary content, which lives as long as any view of it.
Take = Callable[[int], memoryview]


class NoRoomError(StorageError):
    """This node's disk has no room for what fills a folder, so nothing is cached there: the source must be read."""


class Arrival(Protocol):
    """A file that is not whole yet, open for reading; safe for several threads.

    Its methods wait for bytes that are missing. Within `from_source` they fetch bytes again that have arrived: a
    checksum was wrong.

    Attributes:
        num_bytes: the size of the whole file.
    """

    num_bytes: int

    def fill(self, offsets: Numbers, sizes: Numbers, memory: memoryview, places: Numbers) -> None:
        """Reads ranges, which lie within the file, to places in memory, as `dlio.io.random_access.read_ranges`."""

    def will_need(self, starts: Numbers, stops: Numbers) -> object:
        """Fetches the ranges; waits for them."""

    def close(self) -> None:
        """Closes the file; may be called twice."""


class Arrivals(Protocol):
    """The files of a folder that are read before they are whole; safe for several threads."""

    def prepare(self, names: Sequence[str]) -> Collection[str]:
        """Waits for the small ones of a shard's files; returns the names of those that are still arriving.

        Raises:
            StorageError: no node has them, or the process that fills the folder has ended.
        """

    def complete(self, names: Sequence[str]) -> None:
        """Waits until files are whole, under their final names; raises as `prepare`."""

    def arrival(self, path: Path) -> Arrival | None:
        """Returns a file that is arriving, None if it is not a file of the data set; raises as `prepare`."""


class Filling(Arrivals, Protocol):
    """A folder that is being filled; safe for several threads and across fork, picklable.

    `prepare` and `complete` raise NoRoomError while nothing can be brought: then a shard is read at the source.
    """

    def source(self) -> Manifest:
        """Returns the manifest of the data set where it is filled from; raises StorageError, ManifestError."""

    def expect(self, shards: Sequence[int]) -> None:
        """Sends the order in which this process will first use the shards, as far as it is known; does not raise."""

    def counts(self) -> Mapping[str, float]:
        """Returns what this process has waited for so far: `peer_bytes`, `peer_seconds`, `source_bytes`, ..."""

    def progress(self) -> str:
        """Returns how far the folder is, as text; "" if it is filled, or nobody can tell."""


def arrived(fillings: Iterable[Filling]) -> Mapping[str, float]:
    """Returns the sums of `Filling.counts`."""
    sums = Counter[str]()
    for filling in fillings:
        sums.update(filling.counts())
    return sums


_opened: ContextVar[Arrivals | None] = ContextVar("opened", default=None)
_is_from_source: ContextVar[bool] = ContextVar("from_source", default=False)


@contextmanager
def opening(folder: Arrivals | None) -> Iterator[None]:
    """Lets this thread open files that are still arriving, within the body."""
    token = _opened.set(folder)
    try:
        yield
    finally:
        _opened.reset(token)


@contextmanager
def from_source() -> Iterator[None]:
    """Lets this thread read arriving files again from their source, within the body: a checksum was wrong."""
    token = _is_from_source.set(True)
    try:
        yield
    finally:
        _is_from_source.reset(token)


def is_from_source() -> bool:
    """Returns whether this thread distrusts what has arrived."""
    return _is_from_source.get()


def find(path: Path) -> Arrival | None:
    """Returns the file that arrives at `path`, None if none does; raises as `Arrivals.arrival`."""
    folder = _opened.get()
    return None if folder is None else folder.arrival(path)
