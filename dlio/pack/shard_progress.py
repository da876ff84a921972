"""How far workers are within their shards: a table in memory, which they write and the main process adds up.

To show the progress, use `with watching(Watch()) as watch`. The runs in this context make a table with a row for
each shard: the samples and the bytes done. Its file has no name in any folder, so a killed run leaves none behind;
workers of any engine on this machine open it through the main process, those on other machines do without. A row is
written by one worker, so no lock is needed.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from dlio.dataset.manifest import Shard

Counts = NDArray[np.int64]  # of shape (2,): samples, bytes
_ROW_BYTES = 16
EVERY = 16  # samples between two updates of the table


@dataclass(frozen=True, slots=True)
class Row:
    """A shard's row in the table; picklable.

    Attributes:
        path: the open file of the main process.
        name: what the system calls that file: elsewhere, or later, the path may be that of another.
        number: the number of the row.
        num_rows: how many there are.
    """

    path: str
    name: str
    number: int
    num_rows: int


def counts(row: Row | None) -> Counts:
    """Returns the row to write to; one that nobody sees if there is none, or this machine does not have the table."""
    if row is not None:
        with suppress(OSError, ValueError), open(row.path, "r+b", opener=_opener) as file:
            found = str(Path(f"/proc/self/fd/{file.fileno()}").readlink()), os.fstat(file.fileno()).st_size
            if found == (row.name, _ROW_BYTES * row.num_rows):
                table: NDArray[np.int64] = np.asarray(np.memmap(file, np.int64, "r+", shape=(row.num_rows, 2)))
                return table[row.number, :]
    return np.zeros(2, np.int64)


def _opener(path: str, flags: int) -> int:
    """Opens a path that may have become a pipe's, without waiting."""
    return os.open(path, flags | os.O_NONBLOCK)


class Watch:
    """Adds up the rows of the shards that are not finished yet; for one run at a time."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._table: NDArray[np.int64] = np.zeros((0, 2), np.int64)
        self._file: BinaryIO | None = None

    def rows(self, shards: Sequence[str]) -> dict[str, Row]:
        """Returns the row of each shard, in a new table; none if there is no memory for it."""
        self.close()
        name, num_bytes = f"dlio-{secrets.token_hex(8)}", _ROW_BYTES * len(shards)
        try:
            self._file = os.fdopen(os.memfd_create(name), "r+b", buffering=0)
            os.posix_fallocate(self._file.fileno(), 0, num_bytes)  # a page that lacks later is a SIGBUS
            self._table = np.asarray(np.memmap(self._file, np.int64, "r+", shape=(len(shards), 2)))
        except OSError:
            self.close()
            return {}
        self._numbers = {shard: number for number, shard in enumerate(shards)}
        path = f"/proc/{os.getpid()}/fd/{self._file.fileno()}"
        return {
            shard: Row(path, f"/memfd:{name} (deleted)", number, len(shards)) for shard, number in self._numbers.items()
        }

    def finished(self, shard: str) -> None:
        """Forgets a shard that is now reported."""
        if self._numbers.get(shard, len(self._table)) < len(self._table):
            self._table[self._numbers[shard]] = 0

    def now(self) -> tuple[int, int]:
        """Returns the samples and bytes of unfinished shards that are done."""
        samples, num_bytes = self._table.sum(axis=0).tolist()
        return samples, num_bytes

    def close(self) -> None:
        """Removes the table; may be called twice."""
        self._table = np.zeros((0, 2), np.int64)
        if self._file is not None:
            self._file.close()
            self._file = None


_watch: ContextVar[Watch | None] = ContextVar("watch", default=None)


@contextmanager
def watching(watch: Watch) -> Generator[Watch, None, None]:
    """Lets `watch` see the runs in this context."""
    token = _watch.set(watch)
    try:
        yield watch
    finally:
        _watch.reset(token)
        watch.close()


def rows(shards: Sequence[str]) -> dict[str, Row]:
    """Returns the rows for the workers of a run; none if nobody watches."""
    watch = _watch.get()
    return watch.rows(shards) if watch is not None and shards else {}


def finished(shard: str) -> None:
    """Notes that a shard is about to be reported."""
    watch = _watch.get()
    if watch is not None:
        watch.finished(shard)


def reported(shards: Iterable[Shard], report: Callable[[Shard], None]) -> Iterator[Shard]:
    """Yields finished shards, each after it was reported."""
    for shard in shards:
        finished(shard.name)
        report(shard)
        yield shard
