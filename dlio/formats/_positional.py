"""Reading a shard's file at given positions, by any number of threads."""

from __future__ import annotations

import os
from pathlib import Path

from dlio.errors import CorruptRecordError, StorageError


class PositionalFile:
    """A file open for reading at any offset; thread-safe, since nothing moves between calls.

    Reads copy rather than map: a file that shrinks, or a disk that fails, then gives an error instead of a signal.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor: int | None = None
        try:
            self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            self.num_bytes = os.fstat(self._descriptor).st_size
        except OSError as error:
            raise StorageError(error.errno, f"cannot open {path}: {error.strerror}") from error

    def read(self, offset: int, num_bytes: int, record: int | None = None) -> bytes:
        """Returns exactly `num_bytes` from `offset`.

        Raises:
            CorruptRecordError: the file ends before; names `record`.
            StorageError: the file cannot be read.
        """
        if self._descriptor is None:
            raise StorageError(f"{self.path} is closed: open the shard again")
        if offset < 0 or num_bytes < 0 or offset + num_bytes > self.num_bytes:
            problem = f"expected {num_bytes} bytes here, the file ends at {self.num_bytes}: it is cut off, restore it"
            raise CorruptRecordError(self.path, problem, record=record, offset=offset)
        try:
            data = os.pread(self._descriptor, num_bytes, offset)
            while len(data) < num_bytes:  # a read is interrupted at 2 GiB, or the file was cut since it was opened
                more = os.pread(self._descriptor, num_bytes - len(data), offset + len(data))
                if not more:
                    problem = f"expected {num_bytes} bytes here, found {len(data)}: the file has shrunk, restore it"
                    raise CorruptRecordError(self.path, problem, record=record, offset=offset)
                data += more
        except OSError as error:
            raise StorageError(error.errno, f"cannot read {self.path} at {offset}: {error.strerror}") from error
        return data

    def close(self) -> None:
        """Closes the file; may be called twice."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def __del__(self) -> None:
        self.close()
