"""The names of classes, where records tell them: read from the first record of each label."""

from __future__ import annotations

from collections import defaultdict

from dlio.dataset.manifest import Manifest
from dlio.errors import SchemaError
from dlio.pack.index import Layout, NamesClasses
from dlio.pack.index._keys import tables

_MAX_CLASSES = 1 << 20  # labels beyond are numbers of another kind


def class_names(manifest: Manifest, layout: Layout) -> tuple[str, ...]:
    """Returns the name of each class, '' for one without; empty where none has one.

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
        place = f"{manifest.shards[shard].name}, record {record}"
        raise SchemaError(f"{manifest.root}, {place}: the label is {least}, less than the label offset {offset}")
    if not isinstance(layout, NamesClasses) or not first or max(first) - offset >= _MAX_CLASSES or min(first) < offset:
        return ()
    named = [""] * (max(first) - offset + 1)
    for shard, places in _by_shard(first).items():
        found = layout.class_names(manifest.root / manifest.shards[shard].files[0].name, list(places.values()))
        for label, name in zip(places, found, strict=True):
            named[label - offset] = name
    return tuple(named) if any(named) else ()


def _first_records(manifest: Manifest) -> dict[int, tuple[int, int]]:
    """Returns shard number and record number of the first record of each label."""
    import numpy as np

    first: dict[int, tuple[int, int]] = {}
    for number, table in tables(manifest):
        labels, records = np.unique(table.field("label"), return_index=True)
        for label, record in zip(labels.tolist(), records.tolist(), strict=True):
            first.setdefault(label, (number, record))
    return first


def _by_shard(first: dict[int, tuple[int, int]]) -> dict[int, dict[int, int]]:
    places: dict[int, dict[int, int]] = defaultdict(dict)
    for label, (shard, record) in first.items():
        places[shard][label] = record
    return places
