"""Text indexes: a line of whole numbers for each record, as TFRecord's and RecordIO's tools write them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from dlio.errors import CorruptRecordError, StorageError

if TYPE_CHECKING:
    import numpy as np


def read_index(path: Path, columns: int) -> np.ndarray[Any, Any] | None:
    """Returns the numbers of an index, int64 of shape (n, columns), or None where there is no such file.

    Raises:
        CorruptRecordError: it holds anything but lines of `columns` whole numbers.
        StorageError: it cannot be read.
    """
    import numpy as np

    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StorageError(error.errno, f"cannot read {path}: {error.strerror}") from error
    try:
        numbers = np.array(text.split(), dtype="int64")
    except (ValueError, OverflowError):
        numbers = np.empty(0, dtype="int64")
    if numbers.size != columns * text.count(b"\n") or (numbers < 0).any() or (text and not numbers.size):
        problem = f"expected {columns} whole numbers a line: delete it, then the records are scanned"
        raise CorruptRecordError(path, problem)
    return numbers.reshape(-1, columns)
