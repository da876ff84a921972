"""Reads of shards: the samples of a batch shard by shard, those of several shards read together, and joined."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from dlio.dataset.bulk.ranges import read_values
from dlio.dataset.pool import ShardPool
from dlio.dataset.reader import ShardReader
from dlio.dataset.schema import Array, Fields, Schema
from dlio.io.random_access import Numbers, OutRows, Take


class ShardRead(NamedTuple):
    """Some samples of a batch that are in one shard.

    Attributes:
        shard: the open shard.
        rows: their places in the batch; int64 of shape (n,).
        records: their numbers in the shard, ascending; int64 of shape (n,).
    """

    shard: ShardReader
    rows: Numbers
    records: Numbers


def shard_reads(pool: ShardPool, offsets: Numbers, numbers: Numbers, rows: Numbers) -> Iterator[list[ShardRead]]:
    """Yields the reads of the shards that hold some samples, in the order of the shards, several at a time.

    Args:
        pool: lends the shards while the consumer has them.
        offsets: the number of each shard's first sample, and of all samples; int64 of shape (m + 1,).
        numbers: the samples; int64 of shape (n,).
        rows: their places in the batch; int64 of shape (n,).
    """
    order = numbers.argsort(kind="stable")
    numbers, rows = numbers[order], rows[order]
    shards = offsets.searchsorted(numbers, side="right") - 1
    records = numbers - offsets[shards]
    bounds = [0, *((shards[1:] != shards[:-1]).nonzero()[0] + 1).tolist(), len(numbers)]
    spans = list(pairwise(bounds if len(numbers) else ()))
    at_a_time = pool.most_lent
    for first in range(0, len(spans), at_a_time):
        some = spans[first : first + at_a_time]
        with pool.shards(shards[[begin for begin, _ in some]].tolist()) as lent:
            yield [
                ShardRead(shard, rows[begin:end], records[begin:end])
                for shard, (begin, end) in zip(lent, some, strict=True)
            ]


def read_columns(reads: list[ShardRead], take: Take, out: Fields) -> list[Fields]:
    """Returns the columns of each read; arguments and errors as `ShardReader.read_columns`, `out` has whole batches.

    Values at known places are read from all shards together.
    """
    ranges = [read.shard.ranges(read.records) for read in reads]
    large = read_values([each for each in ranges if each is not None], take)
    columns = []
    for read, found in zip(reads, ranges, strict=True):
        rows = {name: OutRows(array, read.rows) for name, array in out.items()}
        columns.append(read.shard.read_columns(read.records, take, rows, None if found is None else next(large)))
    return columns


def joined_columns(schema: Schema, size: int, placed: Fields, read: list[tuple[Numbers, Fields]]) -> Fields:
    """Returns a column of `size` values for each field: those that are `placed` already, and what was read by rows."""
    if len(placed) == len(schema):
        return placed
    if len(read) == 1 and len(rows := read[0][0]) == size and (rows[1:] > rows[:-1]).all():
        return {**read[0][1], **placed}
    columns: Fields = {
        name: np.empty((size, *kind.fixed_shape), kind.dtype) if kind.is_fixed else [None] * size
        for name, kind in schema.fields
        if name not in placed
    }
    for rows, values in read:
        for name, column in columns.items():
            _put(column, rows, values[name])
    return {**columns, **placed}


def _put(column: list[object] | Array, rows: Numbers, values: Sequence[object] | Array) -> None:
    """Writes values into the rows of a column."""
    if isinstance(column, np.ndarray):
        column[rows] = values
        return
    for row, value in zip(rows.tolist(), values, strict=True):
        column[row] = value
