"""Text indexes of shards: their paths, and lines of whole numbers as TFRecord's and RecordIO's tools write them.

A shard's index is `NAME.idx` next to it. If other tools have not written it, `dlio index` writes one of the same form
as `.dlio-index/NAME.SUFFIX.idx`, which patterns such as `train-*` do not match.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

import numpy as np

from dlio.errors import CorruptRecordError, StorageError
from dlio.io.random_access import Numbers, read_whole

HIDDEN = ".dlio-index"
_FREE_BYTES, _MAX_RATIO = 1 << 12, 4  # of an index to its records: RecordIO's lines of 27 bytes for records of 8
_ignores_hidden = ContextVar("_ignores_hidden", default=False)


def index_paths(records: Path) -> tuple[Path, Path]:
    """Returns the two possible paths of a shard's index: next to it, and hidden.

    The number of `train.tfrecord-00000-of-00008` does not count as a suffix.
    """
    name = f"{records.name}.idx"
    visible = records.with_name(name) if "-of-" in records.suffix else records.with_suffix(".idx")
    return visible, records.parent / HIDDEN / name


@contextmanager
def without_hidden_indexes() -> Iterator[None]:
    """Readers in this context ignore indexes that `dlio index` wrote: the shards may have changed since."""
    token = _ignores_hidden.set(True)
    try:
        yield
    finally:
        _ignores_hidden.reset(token)


def read_text(
    records: Path, is_usable: Callable[[bytes], bool] = lambda text: True, num_bytes: int | None = None
) -> tuple[Path, bytes] | None:
    """Returns path and text of a usable index of the shard `records`, None if there is none.

    Raises:
        CorruptRecordError: it is too large for records of `num_bytes`, of whose framing an index takes a part.
        StorageError: it cannot be read.
    """
    most = None if num_bytes is None else _FREE_BYTES + _MAX_RATIO * num_bytes
    for path in index_paths(records)[: 1 if _ignores_hidden.get() else 2]:
        try:
            text = read_whole(path, most)
        except StorageError as error:
            if error.errno == errno.ENOENT:
                continue
            raise
        if is_usable(text):
            return path, text
    return None


def read_index(records: Path, columns: int, num_bytes: int | None = None) -> tuple[Path, Numbers] | None:
    """Returns path and numbers of the index of the shard `records`, int64 of shape (n, columns); None without one.

    Raises:
        CorruptRecordError: it holds anything but lines of `columns` whole numbers, or as `read_text`.
        StorageError: it cannot be read.
    """
    found = read_text(records, num_bytes=num_bytes)
    if found is None:
        return None
    path, text = found
    try:
        numbers = np.array(text.split(), dtype="int64")
    except (ValueError, OverflowError):
        numbers = np.empty(0, dtype="int64")
    if numbers.size != columns * text.count(b"\n") or (numbers < 0).any() or (text and not numbers.size):
        problem = f"expected {columns} whole numbers a line: delete it, then the records are scanned"
        raise CorruptRecordError(path, problem)
    return path, numbers.reshape(-1, columns)
