"""ArrayRecord: files of records as Grain and TFDS keep them, through the package array-record, read only.

A record holds a `tf.train.Example`, as `payloads.example` reads it. The library finds a record by its number and checks
its hash; it unpacks records in groups, and so records that are read in order come from it in batches. It is not made
for hostile files: what it unpacks is not bounded by the file's size.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from dlio.dataset.schema import Sample, Schema
from dlio.errors import CorruptRecordError, StorageError, missing_package
from dlio.formats.payloads import example
from dlio.io.random_access import RandomAccessFile

SUFFIX = ".array_record"
MAGIC = bytes.fromhex("83af70d10d884a3f")
_BATCH = 32  # records that are read ahead, once two in a row were asked for
_OPTIONS = "readahead_buffer_size:0,max_parallelism:0"  # no threads: readers are opened in forked processes


def refuses(schema: Schema) -> str | None:
    """Returns that dlio does not write ArrayRecord."""
    return f"dlio reads ArrayRecord, and writes the fields {', '.join(map(repr, schema))} in other formats only"


@contextmanager
def _reading(path: Path, record: int | None = None) -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        said = str(error).partition(";")[0]
        raise CorruptRecordError(
            path, f"ArrayRecord cannot read it ({said}): restore the file", record=record
        ) from error


class Records:
    """The records of a file, as bytes; safe for several threads."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with closing(RandomAccessFile(path)) as file:  # so that an unreadable file is not reported as damaged
            if file.is_arriving:
                raise StorageError(f"{path}: its package reads whole files only: copy it to a folder, by dlio stage")
        try:
            from array_record.python.array_record_module import ArrayRecordReader
        except ImportError as error:
            raise missing_package("array-record", "arrayrecord", "ArrayRecord") from error
        with _reading(path):
            self._library: Any = ArrayRecordReader(str(path), _OPTIONS)
            if not self._library.ok():
                self._library.close()  # raises what it has found; else the file would seem to have no records
            self._count = int(self._library.num_records())
        self._lock = threading.Lock()
        self._batch: list[bytes] = []
        self._first = 0

    def __len__(self) -> int:
        return self._count

    def __call__(self, index: int) -> bytes:
        """Returns a record; raises CorruptRecordError."""
        with self._lock:
            if not self._first <= index < self._first + len(self._batch):
                is_next = index == self._first + len(self._batch)
                with _reading(self._path, index):
                    self._batch = self._library.read(index, min(index + (_BATCH if is_next else 1), self._count))
                self._first = index
            return self._batch[index - self._first]

    def close(self) -> None:
        """Closes the file; may be called twice."""
        with suppress(RuntimeError):  # the damage that was found, once more
            self._library.close()


class Reader:
    """Reads a file by record number."""

    def __init__(self, path: Path, schema: Schema) -> None:
        self._path = path
        self._schema = schema
        self._records = Records(path)

    def __len__(self) -> int:
        return len(self._records)

    def locate(self, index: int) -> tuple[Path, int | None]:
        """Returns the file; only the library knows offsets."""
        return self._path, None

    def read(self, index: int) -> Sample:
        """Returns record `index`."""
        data = self._records(index)
        try:
            return example.decode(memoryview(data), self._schema)
        except ValueError as error:
            raise CorruptRecordError(self._path, str(error), record=index) from error

    def close(self) -> None:
        """Closes the file."""
        self._records.close()
