"""ArrayRecord: files of records as Grain and TFDS keep them, read only.

A record holds a `tf.train.Example`, as `payloads.example` reads it. Records are packed in groups, of one as TFDS writes
them; `layouts.riegeli` reads a group. While records are read in order, the last group is kept.
"""

from __future__ import annotations

from pathlib import Path

from dlio.dataset.schema import Sample, Schema
from dlio.errors import CorruptRecordError, corrupt_errors
from dlio.formats.layouts.riegeli.chunks import Group, read_group
from dlio.formats.layouts.riegeli.index import read_index
from dlio.formats.payloads import example
from dlio.formats.readonly import not_written
from dlio.io.files import closed_on_error
from dlio.io.random_access import RandomAccessFile

SUFFIX = ".array_record"
MAGIC = bytes.fromhex("83af70d10d884a3f")
refuses = not_written("ArrayRecord")


class Records:
    """The records of a file, as bytes; safe for several threads and for forks, since it has no lock."""

    def __init__(self, path: Path) -> None:
        """Opens a file; raises as `read_index`."""
        self._path = path
        self._file = RandomAccessFile(path)
        with closed_on_error(self._file):
            self._index = read_index(self._file)
        self._next = 0
        self._kept: tuple[int, Group] | None = None  # replaced as a whole: what a thread has does not change

    def __len__(self) -> int:
        return self._index.num_records

    def locate(self, index: int) -> int:
        """Returns the offset of the chunk that holds a record."""
        return int(self._index.chunks[index // self._index.group_size, 0])

    def __call__(self, index: int) -> bytes:
        """Returns a record.

        Raises:
            CorruptRecordError: its chunk is damaged.
            StorageError: the file cannot be read.
        """
        number, place = divmod(index, self._index.group_size)
        kept, is_next = self._kept, index == self._next
        self._next = index + 1
        if kept is None or kept[0] != number:
            self._kept = None
            kept = number, self._read(number, index)
            if is_next and len(kept[1]) > 1:
                self._kept = kept
        return kept[1][place]

    def _read(self, number: int, index: int) -> Group:
        offset, num_bytes, num_records, end = self._index.chunks[number].tolist()
        group = read_group(self._file, offset, index, end)
        if (len(group.values), len(group)) != (num_bytes, num_records):
            problem = f"a chunk of {len(group)} records and {len(group.values)} bytes"
            problem += f", expected {num_records} and {num_bytes}: restore the file"
            raise CorruptRecordError(self._path, problem, record=index, offset=offset)
        return group

    def close(self) -> None:
        """Closes the file; may be called twice."""
        self._file.close()


class Reader:
    """Reads a file by record number."""

    def __init__(self, path: Path, schema: Schema) -> None:
        self._path = path
        self._schema = schema
        self._records = Records(path)

    def __len__(self) -> int:
        return len(self._records)

    def locate(self, index: int) -> tuple[Path, int | None]:
        """Returns the file, and the offset of the chunk that holds the record."""
        return self._path, self._records.locate(index)

    def read(self, index: int) -> Sample:
        data = self._records(index)
        with corrupt_errors(self._path, record=index, offset=self._records.locate(index)):
            return example.decode(memoryview(data), self._schema)

    def close(self) -> None:
        self._records.close()
