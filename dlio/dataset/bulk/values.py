"""Reads the values of one large field of many records at once, by offset, and compares each with its checksum.

Small numbers are not parsed: the table next to the shard has those of each sample, and a checksum over all its values.
The checksum that a sample's one large value must have follows from these.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from dlio import native
from dlio.dataset.bulk.arrays import UNKNOWN, BulkArrays, read_arrays, rows_of, shaped, within
from dlio.dataset.bulk.ranges import ValueRanges, Values, read_values
from dlio.dataset.checksum import Crcs, retract
from dlio.dataset.sample_group import Pieces
from dlio.dataset.sample_table import SampleTable, small_bytes
from dlio.dataset.schema import Array, Field, Schema
from dlio.formats import Reader, SpanReader, Spans
from dlio.io.random_access import Numbers, OutRows, Take

_SEARCHED_BYTES = 512  # enough for the part of an Example before its image, with a key of up to 300 bytes
_SOUGHT_BYTES = 1 << 20  # a value from here on is searched before it is read, and so read where it stays
_UNSEARCHED = -1  # in place of an offset, as UNKNOWN


def large_field(schema: Schema) -> str | None:
    """Returns the one field that the table does not keep, if it is of bytes or an array; else None."""
    others = [name for name in schema if name not in schema.small]
    is_bulk = len(others) == 1 and (schema[others[0]].is_number or str(schema[others[0]]) == "bytes")
    return others[0] if is_bulk else None


def _are_of(kind: Field, shapes: Numbers, sizes: Numbers) -> npt.NDArray[np.bool_]:
    """Returns which shapes a field may have, and arrays of these sizes in bytes; bool of shape (n,)."""
    dims = [-1 if dim is None else dim for dim in kind.shape]
    fits = ((shapes >= 0) & ((shapes == dims) | (np.array(dims) < 0))).all(axis=1)
    counts = shapes.prod(axis=1, dtype=np.float64)  # exact for what a file can hold, and never a wrong small number
    return np.asarray(fits & (counts * kind.stored_dtype.itemsize == sizes))


def open_values(reader: Reader, table: SampleTable, schema: Schema) -> BulkValues | BulkArrays | None:
    """Returns the values of the large fields of a shard, None if they can only be read record by record.

    Raises:
        CorruptRecordError: the table is damaged.
        StorageError: it cannot be read.
    """
    if not isinstance(reader, SpanReader):
        return None
    name = large_field(schema)
    if name is None:
        return _open_arrays(reader, table, schema)
    kind = schema[name]
    sizes = table.num_bytes * 0 + kind.fixed_bytes if kind.is_fixed else table.num_bytes - small_bytes(schema)
    shapes, told = None, sizes
    if kind.is_number and not kind.is_fixed:
        if (shapes := table.shapes(name)) is None:
            return None
        told, sizes = shapes, np.where(_are_of(kind, shapes, sizes), sizes, -1)
    spans = reader.spans(name, sizes)
    return None if spans is None else BulkValues(name, kind, spans, sizes, *_wanted(table, schema, name, told), shapes)


def _open_arrays(reader: SpanReader, table: SampleTable, schema: Schema) -> BulkArrays | None:
    """Returns the values of several large fields, None unless all are arrays of one shape at known places."""
    spans: dict[str, Spans] = {}
    offsets: dict[str, Numbers] = {}
    for name in schema.keys() - schema.small.keys():
        kind, records = schema[name], np.arange(len(table.num_bytes))
        sizes = np.full(len(records), kind.fixed_bytes if kind.is_fixed else 0)
        found = reader.spans(name, sizes) if kind.is_number and kind.is_fixed else None
        if found is None or found.marker:
            return None
        spans[name] = found
        offsets[name] = within(found, sizes, records, found.starts + found.gaps)
    return BulkArrays(table, schema, spans, offsets) if spans else None


def _wanted(table: SampleTable, schema: Schema, name: str, told: Numbers) -> tuple[Crcs, Crcs]:
    """Returns each sample's running checksums before and after its value of field `name`; see `dataset.checksum`.

    Args:
        table: of the samples.
        schema: their fields.
        name: the field.
        told: the sizes of its values, or their shapes, with which the checksum of a sample ends if they vary.
    """
    names = list(schema)
    at = names.index(name)
    before = np.zeros(len(told), dtype=np.uint32)
    for other in names[:at]:
        Pieces.rows(rows_of(table.field(other))).extend(before)
    after = table.crcs if schema[name].is_fixed else retract(table.crcs, rows_of(told))
    for other in reversed(names[at + 1 :]):
        after = retract(after, rows_of(table.field(other)))
    return before, after


class BulkValues:
    """Reads the values of a field of bytes, or of arrays of one shape; safe for several threads.

    Attributes:
        name: the field.
    """

    def __init__(
        self,
        name: str,
        kind: Field,
        spans: Spans,
        sizes: Numbers,
        before: Crcs,
        after: Crcs,
        shapes: Numbers | None = None,
    ) -> None:
        self.name = name
        self._kind = kind
        self._spans = spans
        self._sizes = sizes
        self._before = before if before.any() else None
        self._after = after
        self._shapes = shapes
        if spans.marker:
            self._offsets = np.full(len(sizes), _UNSEARCHED, dtype=np.int64)
        else:
            self._offsets = within(spans, sizes, np.arange(len(sizes)), spans.starts + spans.gaps)

    def columns(
        self, records: Numbers, take: Take, out: Mapping[str, OutRows], large: Values | None = None
    ) -> tuple[dict[str, Any], list[int]]:
        """Returns what `BulkArrays.columns` does; `large` is what was read of `ranges`.

        Arrays of one shape come as one array of shape (n, *shape), or to `out`, where that is as fast.
        """
        read = self._read(records, take, out.get(self.name)) if large is None else self._made(records, *large)
        return {self.name: read[0]}, read[1]

    def _read(
        self, records: Numbers, take: Take, out: OutRows | None
    ) -> tuple[list[memoryview] | list[Array] | Array | OutRows, list[int]]:
        if self._kind.is_fixed and (offsets := self._known(records)) is not None:
            crcs = self._crcs_before(records)
            rows, missing = read_arrays(self._kind, self._spans, offsets, crcs, take, out)
            return rows, ((crcs != self._after[records]) | missing).nonzero()[0].tolist()
        return self._searched(records, take)

    def _made(
        self, records: Numbers, values: list[memoryview], wrong: list[int]
    ) -> tuple[list[memoryview] | list[Array], list[int]]:
        """Returns values of several shapes as arrays, if they are, and the rows of wrong ones."""
        if self._shapes is None:
            return values, wrong
        shapes = map(tuple, self._shapes[records].tolist())
        return [self._of_shape(value, shape) for value, shape in zip(values, shapes, strict=True)], wrong

    def _of_shape(self, value: memoryview, shape: tuple[int, ...]) -> Array:
        """Returns a value as an array, in its memory if it can be; an empty one if it was not found."""
        stored = self._kind.stored_dtype
        if len(value) != prod(shape) * stored.itemsize:
            return np.empty(0, self._kind.dtype)
        array = np.frombuffer(value, stored).reshape(shape).astype(self._kind.dtype, copy=False)
        return array if array.flags.writeable and array.flags.aligned else array.copy()

    def ranges(self, records: Numbers) -> ValueRanges | None:
        """Returns where the values of `records` are; None if all have the same shape, arrive, or must be searched."""
        if self._kind.is_fixed or self._spans.file.is_arriving or (offsets := self._known(records)) is None:
            return None
        before, after = self._crcs_before(records), self._after[records]
        return ValueRanges(self._spans.file, offsets, self._sizes[records], before, after, self._shapes is not None)

    def _known(self, records: Numbers) -> Numbers | None:
        """Returns the offsets of values, searching large ones; None if some are not known."""
        offsets = self._offsets[records]
        if offsets.min(initial=0) >= 0:
            return offsets
        sought = (offsets == _UNSEARCHED) & (self._sizes[records] >= _SOUGHT_BYTES)
        if not sought.any() or self._spans.file.is_arriving:
            return None
        self._search(records[sought])
        offsets = self._offsets[records]
        return None if offsets.min() < 0 else offsets

    def _crcs_before(self, records: Numbers) -> Crcs:
        return np.zeros(len(records), np.uint32) if self._before is None else self._before[records]

    def _searched(self, records: Numbers, take: Take) -> tuple[list[memoryview] | list[Array] | Array, list[int]]:
        """Returns values as they come: some are searched, in records that are read as a whole."""
        whole = self._unsearched(records)
        starts = np.where(whole, self._spans.starts[records], self._offsets[records])
        sizes = np.where(whole, self._spans.stops[records] - starts, self._sizes[records])
        before, after = self._crcs_before(records), self._after[records]
        ranges = ValueRanges(self._spans.file, np.maximum(starts, 0), np.where(starts < 0, 0, sizes), before, after)
        values, wrong = next(read_values([ranges], take))
        if whole.any() or (self._offsets[records] < 0).any():  # another thread may have found them
            rows = zip(values, records.tolist(), whole.tolist(), strict=True)
            values = [self._search_in(data, record) if is_whole else data for data, record, is_whole in rows]
            crcs = np.fromiter(map(native.crc32c, values, before.tolist()), np.uint32, len(values))
            wrong = np.flatnonzero((crcs != after) | (self._offsets[records] < 0)).tolist()
        return (self._as_array(values), wrong) if self._kind.is_fixed else self._made(records, values, wrong)

    def _as_array(self, values: list[memoryview]) -> Array:
        """Returns values as an array; rows of values that were not found are zero."""
        rows = np.zeros((len(values), self._kind.fixed_bytes), np.uint8)
        for row, value in zip(rows, values, strict=True):
            if len(value) == len(row):
                row[:] = value
        return shaped(rows, self._kind)

    def _unsearched(self, records: Numbers) -> npt.NDArray[np.bool_]:
        """Returns which records to read as a whole, to search their value there; searches other ones already."""
        unsearched: npt.NDArray[np.bool_] = self._offsets[records] == _UNSEARCHED
        if not unsearched.any():
            return unsearched
        starts, stops, sizes = self._spans.starts[records], self._spans.stops[records], self._sizes[records]
        whole = unsearched & (sizes >= 0) & (starts >= 0) & (starts <= stops) & (stops <= self._spans.file.num_bytes)
        whole &= stops - starts - sizes <= 2 * _SEARCHED_BYTES
        if (others := records[unsearched & ~whole]).size:
            self._search(others)
        return whole

    def _search_in(self, data: memoryview, record: int) -> memoryview:
        """Finds the offset of a record's value in the bytes of the whole record, and returns the value."""
        marker, size = self._spans.marker, int(self._sizes[record])
        found = bytes(data[:_SEARCHED_BYTES]).find(marker)
        at = found + len(marker) + int(self._spans.gaps[record])
        is_there = found >= 0 and at + size <= len(data)
        self._offsets[record] = self._spans.starts[record] + at if is_there else UNKNOWN
        return data[at : at + size] if is_there else data[:0]

    def forget(self, record: int) -> None:
        """Marks the offset of a record's value as unknown."""
        self._offsets[record] = UNKNOWN

    def prefetch_hint(self, records: Numbers) -> bool:
        """Lets the system read the values of `records`, in increasing order, while the caller works on others.

        Returns whether they are in memory.
        """
        return self._spans.file.will_need(self._spans.starts[records], self._spans.stops[records])

    def _search(self, records: Numbers) -> None:
        """Finds offsets by searching for the marker."""
        if self._spans.file.is_arriving:  # the values are asked for with the beginnings, in one request
            self.prefetch_hint(records)
        marker, starts = self._spans.marker, self._spans.starts[records]
        read = self._spans.file.read_many(
            np.maximum(starts, 0), np.clip(self._spans.stops[records] - starts, 0, _SEARCHED_BYTES)
        )
        found = np.array([bytes(begin).find(marker) for begin in read], dtype=np.int64)
        offsets = within(self._spans, self._sizes, records, starts + found + len(marker) + self._spans.gaps[records])
        self._offsets[records] = np.where(found < 0, UNKNOWN, offsets)
