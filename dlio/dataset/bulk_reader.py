"""The values of one large field of many records at once, read from their places and proven by the samples' checksums.

A record's own parts are not looked at: its small numbers are in the table beside the shard, and so is a checksum over
all of its values. From that follows, for every sample, the checksum that its one large value must have.
"""

from __future__ import annotations

from itertools import repeat

import numpy as np
import numpy.typing as npt
from crc32c import crc32c

from dlio.dataset import row_checksums
from dlio.dataset.sample_table import SampleTable, columns
from dlio.dataset.schema import Schema
from dlio.formats import Reader, SpanReader, Spans
from dlio.io.random_access import Take, take_fresh

Records = npt.NDArray[np.int64]

_LOOK_BYTES = 512  # holds what an Example has before its image, with a key of up to 300 bytes
_UNKNOWN, _NOWHERE = -1, -2
_NUMBER_BYTES = 8  # what the table counts for a number that is no array


def large_field(schema: Schema) -> str | None:
    """Returns the one field of bytes beside which the table keeps all others, None where there is no such field."""
    kept = columns(schema)
    others = [name for name in schema if name not in kept]
    return others[0] if len(others) == 1 and str(schema[others[0]]) == "bytes" else None


def open_values(reader: Reader, table: SampleTable, schema: Schema) -> BulkValues | None:
    """Returns the values of the large field of a shard, None where they are to be read record by record.

    Raises:
        CorruptRecordError: the table is damaged.
        StorageError: it cannot be read.
    """
    name = large_field(schema)
    if name is None or not isinstance(reader, SpanReader):
        return None
    kept = columns(schema)
    small = [table.field(other)[:1].nbytes if kind.shape else _NUMBER_BYTES for other, kind in kept.items()]
    sizes = table.num_bytes - sum(small)
    spans = reader.spans(name, sizes)
    return None if spans is None else BulkValues(name, spans, sizes, *_wanted(table, schema, name, sizes))


def _wanted(
    table: SampleTable, schema: Schema, name: str, sizes: Records
) -> tuple[row_checksums.Crcs, row_checksums.Crcs]:
    """Returns the checksums before and behind the values of field `name` of each sample: see `dataset.checksum`."""
    names = list(schema)
    at = names.index(name)
    before = np.zeros(len(sizes), dtype=np.uint32)
    for other in names[:at]:
        before = row_checksums.extend(before, _rows(table.field(other)))
    after = row_checksums.retract(table.crcs, _rows(sizes))
    for other in reversed(names[at + 1 :]):
        after = row_checksums.retract(after, _rows(table.field(other)))
    return before, after


def _rows(numbers: npt.NDArray[np.generic]) -> row_checksums.Rows:
    """Returns the little-endian bytes of each sample's numbers; uint8 of shape (n, k)."""
    little = np.ascontiguousarray(numbers, dtype=numbers.dtype.newbyteorder("<"))
    return little.view(np.uint8).reshape(len(numbers), -1)


class BulkValues:
    """The values of a field of bytes; safe for several threads.

    Attributes:
        name: the field.
    """

    def __init__(
        self, name: str, spans: Spans, sizes: Records, before: row_checksums.Crcs, after: row_checksums.Crcs
    ) -> None:
        self.name = name
        self._spans = spans
        self._sizes = sizes
        self._before = before if before.any() else None
        self._after = after
        if spans.marker:
            self._places = np.full(len(sizes), _UNKNOWN, dtype=np.int64)
        else:
            self._places = self._within(np.arange(len(sizes)), spans.starts + spans.gaps)

    def read(self, records: Records, take: Take = take_fresh) -> tuple[list[memoryview], list[int]]:
        """Returns the values of `records`, which rise, and the rows of those that only the record itself can tell.

        Args:
            records: int64 of shape (n,).
            take: gives the memory to read into.

        Raises:
            StorageError: the file cannot be read.
        """
        places = self._found(records)
        sizes = np.where(places < 0, 0, self._sizes[records])
        before = repeat(0) if self._before is None else iter(self._before[records].tolist())
        values: list[memoryview] = []
        crcs: list[int] = []
        for some in self._spans.file.read_many(np.maximum(places, 0), sizes, take):
            values += some
            crcs += map(crc32c, some, before)
        wrong = (np.array(crcs, dtype=np.uint32) != self._after[records]) | (places < 0)
        return values, np.flatnonzero(wrong).tolist()

    def forget(self, record: int) -> None:
        """Takes it that the place of `record` is none."""
        self._places[record] = _NOWHERE

    def announce(self, records: Records) -> None:
        """Lets the system read what holds these values, while others are worked on; `records` rise."""
        self._spans.file.will_need(self._spans.starts[records], self._spans.stops[records])

    def _found(self, records: Records) -> Records:
        """Returns the places of the values, negative where there is none."""
        places = self._places[records]
        missing = places == _UNKNOWN
        if missing.any():
            self._look(records[missing])
            places = self._places[records]
        return places

    def _look(self, records: Records) -> None:
        """Finds places by the marker."""
        marker, starts = self._spans.marker, self._spans.starts[records]
        read = self._spans.file.read_many(
            np.maximum(starts, 0), np.clip(self._spans.stops[records] - starts, 0, _LOOK_BYTES)
        )
        found = np.array([bytes(look).find(marker) for some in read for look in some], dtype=np.int64)
        places = self._within(records, starts + found + len(marker) + self._spans.gaps[records])
        self._places[records] = np.where(found < 0, _NOWHERE, places)

    def _within(self, records: Records, places: Records) -> Records:
        """Returns the places of values that lie within the file and their records' spans, `_NOWHERE` for others."""
        starts, stops, sizes = self._spans.starts[records], self._spans.stops[records], self._sizes[records]
        inside = (starts >= 0) & (stops <= self._spans.file.num_bytes)
        fits = inside & (starts <= places) & (places <= stops) & (sizes >= 0) & (sizes <= stops - places)
        return np.where(fits, places, _NOWHERE)
