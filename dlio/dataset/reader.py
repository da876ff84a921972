"""An open shard: a format's reader joined with the table of its samples, for all of its records or a part of them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from dlio import formats
from dlio.dataset import sample_table
from dlio.dataset.bulk.arrays import BulkArrays
from dlio.dataset.bulk.ranges import ValueRanges, Values
from dlio.dataset.bulk.values import BulkValues, open_values
from dlio.dataset.checksum import crc32c
from dlio.dataset.manifest import Manifest, Shard
from dlio.dataset.remote import in_place
from dlio.dataset.sample_table import SampleTable
from dlio.dataset.schema import Array, Fields, Sample
from dlio.dataset.shard_files import check_base, checked_files
from dlio.errors import CorruptRecordError
from dlio.formats import Reader, SelfChecked
from dlio.io import arrivals
from dlio.io.arrivals import Arrivals
from dlio.io.files import closed_on_error
from dlio.io.random_access import Numbers, OutRows, Take, take_fresh

T = TypeVar("T")
_log = logging.getLogger(__name__)


class ShardReader:
    """One shard of a data set: samples with their exact keys, each compared with its checksum.

    Records are numbered as if the shard had only those of its part; errors name a record by its number in the files.

    Safe for several threads at once; opened again in every process.
    """

    def __init__(self, manifest: Manifest, shard: Shard, filling: Arrivals | None = None) -> None:
        """Opens all of `shard` below `manifest.root`, which `filling` may still be filling.

        Raises:
            StorageError: a file is missing or cannot be read.
            CorruptRecordError: a file is damaged, or of another size than in the manifest.
        """
        self._schema = manifest.schema
        self.shard = shard
        self._may_change = filling is not None
        filling = filling or in_place(manifest, shard)
        paths = checked_files(manifest, shard, filling)
        self._table = open_table(manifest, shard.replace(num_samples=shard.num_records, part=None))
        self._bulk: BulkValues | BulkArrays | None = None
        self._is_prepared = False
        with closed_on_error(self):
            container = formats.load(manifest.format)
            records = paths[0] if manifest.url else _records(paths[0], shard.name + container.SUFFIX)
            with arrivals.opening(filling):
                self._reader: Reader = self._sure(partial(container.Reader, records, self._schema))
            self._checks_itself = isinstance(self._reader, SelfChecked) and self._reader.checks_itself
            if len(self._reader) != shard.num_records:
                problem = f"it holds {len(self._reader)} records, the manifest says {shard.num_records}: restore it"
                raise CorruptRecordError(paths[0], problem)
        self._part = None if shard.part is None else shard.part.records()

    def _sure(self, read: Callable[[], T]) -> T:
        """Returns what is read; if it is damaged and was still arriving, it is read once more from its source."""
        try:
            return read()
        except CorruptRecordError as error:
            if not self._may_change:
                raise
            _log.warning("read again from the source: %s", error)
        with arrivals.from_source():
            return read()

    def __len__(self) -> int:
        return self.shard.num_samples

    def _number(self, index: int) -> int:
        """Returns the number of record `index` in the files."""
        return index if self._part is None else int(self._part[index])

    def _numbers(self, records: Numbers) -> Numbers:
        """Returns the numbers of records in the files."""
        return records if self._part is None else np.asarray(self._part[records])

    def read(self, index: int) -> Sample:
        """Returns record `index`.

        Raises:
            CorruptRecordError: the record differs from what was packed; names file, record, offset and key.
            StorageError: the file cannot be read.
        """
        return self._read(self._number(index))

    def _read(self, record: int) -> Sample:
        """Returns the record of this number in the files; raises as `read`."""
        return self._sure(partial(self._checked, record))

    def _checked(self, index: int) -> Sample:
        """Returns the record of this number in the files, compared with its checksum; raises as `read`."""
        sample = self._stored(index)
        if self._table is None:
            return sample
        if not self._checks_itself and crc32c(sample, self._schema) != self._table.crcs[index]:
            path, offset = self._reader.locate(index)
            key = self._table.key(index)
            problem = f"sample {key!r} is not what was packed (its CRC-32C differs): restore the file"
            raise CorruptRecordError(path, problem, record=index, offset=offset)
        return Sample(self._table.key(index), sample.fields, sample.image_info)

    def _stored(self, index: int) -> Sample:
        """Returns the container's record; an error names the sample's key if the table has it."""
        try:
            return self._reader.read(index)
        except CorruptRecordError as error:
            if self._table is None or error.record is None:
                raise
            problem = f"sample {self._table.key(index)!r}: {error.problem}"
            raise CorruptRecordError(error.path, problem, record=error.record, offset=error.offset) from error

    def ranges(self, records: Numbers) -> ValueRanges | None:
        """Returns where `records`, int64 of shape (n,), have their large values, if these may be read beforehand."""
        values = self._values()
        return None if values is None else values.ranges(self._numbers(records))

    def read_columns(
        self,
        records: Numbers,
        take: Take = take_fresh,
        out: Mapping[str, OutRows] | None = None,
        large: Values | None = None,
    ) -> Fields:
        """Returns the values of many records, a column for each field: a list, or an ndarray of the field's dtype.

        Bytes are read-only views. Small numbers come from the table, and values at known offsets are read without
        parsing their records. Every sample is compared with its checksum.

        Args:
            records: increasing record numbers, int64 of shape (n,).
            take: allocates the memory to read bytes into.
            out: where the values of some fields of numbers go instead, little-endian ones.
            large: what was read of `ranges`.

        Raises:
            CorruptRecordError, StorageError: as `read`.
        """
        out = out or {}
        read = self._columns(self._numbers(records), take, out, large)
        for name, rows in out.items():
            if read[name] is rows:
                continue
            if isinstance(read[name], list) and self._schema[name].shape:
                for row, value in enumerate(read[name]):  # all of them together would be copied twice
                    rows[row] = value
            else:
                rows[:] = read[name]
        return {name: values for name, values in read.items() if name not in out}

    def _columns(
        self, records: Numbers, take: Take, out: Mapping[str, OutRows], large: Values | None
    ) -> dict[str, Any]:
        """Returns the values, or the rows of `out` where they are."""
        bulk_reader = self._values()
        if bulk_reader is None:
            fields = [self._read(record).fields for record in records.tolist()]
            return {name: [viewed(values[name]) for values in fields] for name in self._schema}
        assert self._table is not None
        found, doubtful = bulk_reader.columns(records, take, out, large)
        read = {name: found[name] if name in found else self._table.field(name)[records] for name in self._schema}
        for row in doubtful:
            sample = self._read(int(records[row]))
            bulk_reader.forget(int(records[row]))
            for name, column in read.items():
                column[row] = viewed(sample.fields[name])
        return read

    def prefetch_hint(self, records: Numbers) -> bool:
        """Lets the system read `records`, in increasing order, while the caller works on others.

        Returns whether they are in memory, or cannot be asked for.
        """
        values = self._values()
        return values is None or values.prefetch_hint(self._numbers(records))

    def _values(self) -> BulkValues | BulkArrays | None:
        """Returns the reader of values by offset, None if there is none; made on first use."""
        if not self._is_prepared and self._table is not None:
            self._bulk = open_values(self._reader, self._table, self._schema)
        self._is_prepared = True
        return self._bulk

    def key(self, index: int) -> str:
        """Returns the key of record `index`; reads the record only if the shard has no table."""
        number = self._number(index)
        return self._table.key(number) if self._table else self._reader.read(number).key

    def keys(self) -> list[str]:
        """Returns all keys, in order."""
        if self._table is None:
            return [self.key(index) for index in range(len(self))]
        keys = self._table.keys(0, self.shard.num_records)
        return keys if self._part is None else [keys[number] for number in self._part.tolist()]

    def sizes(self) -> Numbers | None:
        """Returns the bytes of all values of each sample, int64 of shape (n,), as the table counts them, if it does."""
        return self._taken(self._table.num_bytes) if self._table else None

    def column(self, name: str) -> Array:
        """Returns a small field of numbers of all samples: an ndarray of the field's dtype, (n, *shape), read-only.

        Raises:
            KeyError: the schema has no such field.
        """
        if self._table and name in self._schema.small:
            return self._taken(self._table.field(name))
        found = [self._reader.read(self._number(index)).fields[name] for index in range(len(self))]
        return np.array(found, dtype=self._schema[name].dtype)

    def _taken(self, column: Array) -> Array:
        """Returns the values of the records, given those of all records in the files."""
        return column if self._part is None else column[self._part]

    def locate(self, index: int) -> tuple[Path, int | None]:
        """Returns the file that holds record `index` and its offset in bytes, None if the format has none."""
        return self._reader.locate(self._number(index))

    def close(self) -> None:
        """Closes all files; may be called twice."""
        for part in (getattr(self, "_reader", None), self._table):
            if part is not None:
                part.close()


def viewed(value: Any) -> Any:
    """Returns bytes as a view of them; anything else unchanged."""
    return memoryview(value) if isinstance(value, bytes) else value


def open_table(manifest: Manifest, shard: Shard) -> SampleTable | None:
    """Returns the table of a shard's samples, None if it has none.

    Raises:
        CorruptRecordError: it is damaged, or lies behind a link of a set that was made of another shard.
        StorageError: it cannot be read.
    """
    table = next((file for file in shard.files if file.name.endswith(sample_table.SUFFIX)), None)
    check_base(manifest.root, shard, table)
    if table is None:
        return None
    with arrivals.opening(in_place(manifest, shard)):
        return SampleTable(manifest.root / table.name, manifest.schema, shard.num_records, shard.part)


def _records(path: Path, name: str) -> Path:
    """Returns the path that the format opens: the shard's first file, or the folder around it of this name."""
    return path.parent if path.parent.name == Path(name).name else path
