"""An open part of a shard: some of its records, as if it had no others."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from dlio.dataset.bulk.ranges import ValueRanges, Values
from dlio.dataset.manifest import Manifest, Part, Shard
from dlio.dataset.reader import ShardReader
from dlio.dataset.schema import Array, Fields, Sample
from dlio.io.arrivals import Filling
from dlio.io.random_access import Numbers, OutRows, Take, take_fresh


class PartReader:
    """The records of an open shard that are in a part of it; methods, arguments and errors as `ShardReader`.

    Errors name a record by its number in the shard's files.
    """

    def __init__(self, whole: ShardReader, shard: Shard, part: Part) -> None:
        """Takes over the reader of the whole shard, whose number of records is the part's."""
        self.shard = shard
        self._whole, self._records = whole, part.records()

    def __len__(self) -> int:
        return len(self._records)

    def read(self, index: int) -> Sample:
        """Returns record `index` of the part."""
        return self._whole.read(int(self._records[index]))

    def ranges(self, records: Numbers) -> ValueRanges | None:
        """Returns where records of the part have their large values."""
        return self._whole.ranges(self._records[records])

    def read_columns(
        self,
        records: Numbers,
        take: Take = take_fresh,
        out: Mapping[str, OutRows] | None = None,
        large: Values | None = None,
    ) -> Fields:
        """Returns the values of many records of the part, a column for each field."""
        return self._whole.read_columns(self._records[records], take, out, large)

    def prefetch_hint(self, records: Numbers) -> bool:
        """Lets the system read records of the part."""
        return self._whole.prefetch_hint(self._records[records])

    def key(self, index: int) -> str:
        """Returns the key of record `index` of the part."""
        return self._whole.key(int(self._records[index]))

    def column(self, name: str) -> Array:
        """Returns a small field of numbers of all samples of the part."""
        return self._whole.column(name)[self._records]

    def locate(self, index: int) -> tuple[Path, int | None]:
        """Returns the file that holds record `index` of the part, and its offset in bytes."""
        return self._whole.locate(int(self._records[index]))

    def close(self) -> None:
        """Closes all files; may be called twice."""
        self._whole.close()


def open_shard(manifest: Manifest, shard: Shard, filling: Filling | None = None) -> ShardReader | PartReader:
    """Returns the samples of a shard that are in the data set; raises as `ShardReader`."""
    whole = ShardReader(manifest, shard, filling)
    return whole if shard.part is None else PartReader(whole, shard, shard.part)
