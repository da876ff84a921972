"""ArrayRecord: files of records as Grain and TFDS keep them, through the package array-record, read only.

A record holds a `tf.train.Example`, as `payloads.example` reads it. The library finds a record by its number and checks
its hash; it unpacks records in groups, and keeps the group while records are read in order. It is not made for hostile
files: what it unpacks is not bounded by the file's size.

The library has a pool of 64 threads in each process. A fork has none of them, only the pool's locks as they were; and a
range of several groups is read by the pool, whatever the options say. So no call here asks for more than one group.
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
_OPTIONS = "readahead_buffer_size:0,max_parallelism:0"  # records in order: one group, in the calling thread


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
        self._library = self._open()
        self._count = int(self._library.num_records())
        self._lock = threading.Lock()
        self._next = 0

    def _open(self) -> Any:
        try:
            from array_record.python.array_record_module import ArrayRecordReader
        except ImportError as error:
            raise missing_package("array-record", "arrayrecord", "ArrayRecord") from error
        with _reading(self._path):
            library = ArrayRecordReader(str(self._path), _OPTIONS)
            if not library.ok():
                library.close()  # raises what it has found; else the file would seem to have no records
            return library

    def __len__(self) -> int:
        return self._count

    def __call__(self, index: int) -> bytes:
        """Returns a record; raises CorruptRecordError."""
        with self._lock, _reading(self._path, index):
            in_order = index == self._next
            self._next = index + 1
            data: bytes
            if not in_order:
                [data] = self._library.read(index, index + 1)  # lets other threads run
                return data
            try:
                self._library.seek(index)
                data = self._library.read()
            except RuntimeError:
                self._library = self._open()  # after damage it reads nothing more
                raise
            return data

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
