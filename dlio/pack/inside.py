"""How far workers are within their shards: a table in memory, which they write and the main process adds up.

Whoever shows the progress says `with watching(Watch()) as watch`. The runs in this context make a table with a row for
each shard: the samples and the bytes done. Its file lies in /dev/shm, so workers of any engine on this machine find it
by its path; those on other machines do without. A row is written by one worker, so no lock is needed.
"""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Counts = NDArray[np.int64]  # of shape (2,): samples, bytes
_ROW_BYTES = 16
EVERY = 16  # samples between two looks at the table
_MEMORY = Path("/dev/shm")


@dataclass(frozen=True, slots=True)
class Row:
    """A shard's row in the table; picklable."""

    path: str
    number: int
    num_rows: int

    def counts(self) -> Counts:
        """Returns the row to write to, or a row that nobody sees if this machine does not have the table."""
        with suppress(OSError, ValueError), open(self.path, "r+b", opener=_opener) as file:
            found = os.fstat(file.fileno())
            if (found.st_uid, found.st_size) == (os.geteuid(), _ROW_BYTES * self.num_rows) and stat.S_ISREG(
                found.st_mode
            ):
                table: NDArray[np.int64] = np.asarray(np.memmap(file, np.int64, "r+", shape=(self.num_rows, 2)))
                return table[self.number, :]
        return unseen()


def _opener(path: str, flags: int) -> int:
    """Opens a file by its name in a folder that all may write to: a link or a pipe there is a stranger's."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)


def unseen() -> Counts:
    """Returns a row that nobody looks at."""
    return np.zeros(2, np.int64)


class Watch:
    """Adds up the rows of the shards that are not finished yet; for one run at a time."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._table: NDArray[np.int64] = np.zeros((0, 2), np.int64)
        self._path = ""

    def rows(self, shards: Sequence[str]) -> dict[str, Row]:
        """Returns the row of each shard, in a new table."""
        self.close()
        folder = _MEMORY if os.access(_MEMORY, os.W_OK) else None
        with suppress(OSError), tempfile.NamedTemporaryFile(prefix="dlio-", dir=folder, delete=False) as file:
            self._path = file.name
            try:
                os.posix_fallocate(file.fileno(), 0, _ROW_BYTES * len(shards))  # a page that lacks later is a SIGBUS
                self._table = np.asarray(np.memmap(file, np.int64, "r+", shape=(len(shards), 2)))
            except OSError:
                self.close()
        self._numbers = {name: number for number, name in enumerate(shards)}
        return {name: Row(self._path, number, len(shards)) for name, number in self._numbers.items()}

    def finished(self, shard: str) -> None:
        """Forgets a shard, which is reported now."""
        if self._numbers.get(shard, len(self._table)) < len(self._table):
            self._table[self._numbers[shard]] = 0

    def now(self) -> tuple[int, int]:
        """Returns the samples and bytes of unfinished shards that are done."""
        samples, num_bytes = self._table.sum(axis=0).tolist()
        return samples, num_bytes

    def close(self) -> None:
        """Removes the table; may be called twice."""
        self._table = np.zeros((0, 2), np.int64)
        if self._path:
            Path(self._path).unlink(missing_ok=True)
            self._path = ""


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
