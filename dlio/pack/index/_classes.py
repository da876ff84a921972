"""The names of classes in records, read from the first record of each label."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from dlio.dataset.manifest import Manifest
from dlio.errors import SchemaError
from dlio.pack.index._keys import tables
from dlio.pack.index._layout import NamesClasses, ShardLayout

_MAX_CLASSES = 1 << 20  # larger labels are not class indices


def class_names(manifest: Manifest, layout: ShardLayout) -> tuple[str, ...]:
    """Returns the name of each class, '' for a class without a name; empty if no class has a name.

    Raises:
        SchemaError: a label is less than the schema's offset.
        CorruptRecordError, StorageError: a record or table cannot be read.
    """
    if str(manifest.schema.get("label")) != "int64":
        return ()
    first = _first_records(manifest)
    offset = manifest.schema.label_offset
    if offset and (least := min(first, default=offset)) < offset:
        shard, record = first[least]
        problem = f"the label is {least}, less than the label offset {offset}"
        raise SchemaError(f"{manifest.root}, {manifest.shards[shard].name}, record {record}: {problem}")
    if not isinstance(layout, NamesClasses) or not first or max(first) - offset >= _MAX_CLASSES or min(first) < offset:
        return ()
    named = [""] * (max(first) - offset + 1)
    by_shard: dict[int, dict[int, int]] = defaultdict(dict)
    for label, (shard, record) in first.items():
        by_shard[shard][label] = record
    for shard, records in by_shard.items():
        path = manifest.root / manifest.shards[shard].files[0].name
        for label, name in zip(records, layout.class_names(path, list(records.values())), strict=True):
            named[label - offset] = name
    return tuple(named) if any(named) else ()


def _first_records(manifest: Manifest) -> dict[int, tuple[int, int]]:
    """Returns shard number and record number of the first record of each label."""
    first: dict[int, tuple[int, int]] = {}
    for number, table in tables(manifest):
        labels, records = np.unique(table.field("label"), return_index=True)
        for label, record in zip(labels.tolist(), records.tolist(), strict=True):
            first.setdefault(label, (number, record))
    return first
