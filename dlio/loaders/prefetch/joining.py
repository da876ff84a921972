"""The samples that were read shard by shard, or piece by piece, joined in the order of a batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dlio.dataset.schema import Array, Fields, Sample, Schema
from dlio.io.random_access import Numbers


def joined_samples(size: int, read: list[tuple[Numbers, list[Sample]]]) -> list[Sample]:
    """Returns `size` samples, given some with their rows at a time."""
    samples: list[Any] = [None] * size
    for rows, values in read:
        _put(samples, rows, values)
    return samples


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
