"""Reads arrays of one shape of many records at once, by offset: those of one field, or of several."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from dlio.dataset.bulk.ranges import ALIGNMENT, Values, aligned
from dlio.dataset.checksum import Crcs, Rows
from dlio.dataset.sample_group import Pieces
from dlio.dataset.sample_table import SampleTable
from dlio.dataset.schema import Array, Field
from dlio.formats import Spans
from dlio.io.random_access import Numbers, OutRows, Take, read_ranges

_POOLED_BYTES = 1 << 20  # a view of a pool holds several MB
UNKNOWN = -2  # in place of an offset


def rows_of(numbers: Array) -> Rows:
    """Returns the little-endian bytes of each sample's numbers; uint8 of shape (n, k)."""
    little = np.ascontiguousarray(numbers, dtype=numbers.dtype.newbyteorder("<"))
    return little.view(np.uint8).reshape(len(numbers), -1)


def within(spans: Spans, sizes: Numbers, records: Numbers, offsets: Numbers) -> Numbers:
    """Returns the offsets of values that lie within the file and their records' spans, `UNKNOWN` for others."""
    starts, stops, sizes = spans.starts[records], spans.stops[records], sizes[records]
    inside = (starts >= 0) & (stops <= spans.file.num_bytes)
    fits = inside & (starts <= offsets) & (offsets <= stops) & (sizes >= 0) & (sizes <= stops - offsets)
    return np.where(fits, offsets, UNKNOWN)


def shaped(rows: Rows, kind: Field) -> Array:
    """Returns arrays of which each row has the bytes."""
    array = rows.view(kind.stored_dtype).reshape(len(rows), *kind.fixed_shape)
    return array.astype(np.dtype(kind.dtype), copy=False)


def read_arrays(
    kind: Field, spans: Spans, offsets: Numbers, crcs: Crcs, take: Take, out: OutRows | None
) -> tuple[Array | OutRows, npt.NDArray[np.bool_]]:
    """Returns n arrays, or `out` with them, and which of them are cut off or at no known offset.

    Args:
        kind: the field, of numbers of one shape.
        spans: the shard's file, and the order of the values in it.
        offsets: where each array begins; int64 of shape (n,).
        crcs: CRC-32Cs that are extended by the arrays; uint32 of shape (n,).
        take: allocates the memory to read into.
        out: where they go.

    Raises:
        StorageError: the file cannot be read.
    """
    size, order = kind.fixed_bytes, spans.order
    direct = out if order is None else None
    memory = _empty_rows(len(offsets), size, take) if direct is None else direct.memory
    places = (np.arange(len(offsets)) if direct is None else direct.rows) * size
    sizes = np.where(offsets < 0, 0, size)
    read = crcs if order is None else None
    starts = np.maximum(offsets, 0)
    counts = read_ranges([spans.file], offsets * 0, starts, sizes, memory.reshape(-1).data, places, read)
    if order is not None:
        memory = order(memory)
        Pieces(cast(bytes, memory.reshape(-1).data), np.arange(len(offsets) + 1) * size).extend(crcs)  # not copied
        if out is not None:
            out.memory[out.rows] = memory
    return shaped(memory, kind) if out is None else out, counts != size


def _empty_rows(count: int, size: int, take: Take) -> Rows:
    """Returns memory of shape (count, size) that begins at a multiple of `ALIGNMENT`."""
    num_bytes = count * size + ALIGNMENT
    memory = np.empty(num_bytes, np.uint8) if num_bytes < _POOLED_BYTES else np.frombuffer(take(num_bytes), np.uint8)
    return aligned(memory).reshape(count, size)


@dataclass(frozen=True, slots=True)
class BulkArrays:
    """Reads the large fields of samples that consist of numbers of one shape; safe for several threads.

    Attributes:
        table: of the samples, with all other fields.
        kinds: of all fields, in the schema's order.
        spans: of the large fields, without markers.
        offsets: of their values; int64 of shape (n,).
    """

    table: SampleTable
    kinds: Mapping[str, Field]
    spans: Mapping[str, Spans]
    offsets: Mapping[str, Numbers]

    def columns(
        self, records: Numbers, take: Take, out: Mapping[str, OutRows], large: Values | None = None
    ) -> tuple[dict[str, Any], list[int]]:
        """Returns the values of the large fields, and the rows of samples that are wrong here and need `Reader.read`.

        Args:
            records: increasing; int64 of shape (n,).
            take: allocates the memory to read into.
            out: where arrays go.
            large: None, as nothing is read of `ranges`.

        Raises:
            StorageError: the file cannot be read.
        """
        crcs, wrong = np.zeros(len(records), np.uint32), np.zeros(len(records), np.bool_)
        found: dict[str, Any] = {}
        for name, kind in self.kinds.items():
            if name not in self.spans:
                Pieces.rows(rows_of(self.table.field(name)[records])).extend(crcs)
                continue
            offsets = self.offsets[name][records]
            found[name], missing = read_arrays(kind, self.spans[name], offsets, crcs, take, out.get(name))
            wrong |= missing
        return found, (wrong | (crcs != self.table.crcs[records])).nonzero()[0].tolist()

    def ranges(self, records: Numbers) -> None:
        """Returns None: arrays of one shape go to their rows of a batch."""

    def forget(self, record: int) -> None:
        """Marks the offsets of a record's values as unknown."""
        for offsets in self.offsets.values():
            offsets[record] = UNKNOWN

    def prefetch_hint(self, records: Numbers) -> bool:
        """Lets the system read `records`, in increasing order, while the caller works on others.

        Returns whether they are in memory.
        """
        known = [each.file.will_need(each.starts[records], each.stops[records]) for each in self.spans.values()]
        return all(known)
