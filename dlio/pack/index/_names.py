"""Names in the whole data set, after each shard was scanned alone: distinct keys, and the names of classes."""

from __future__ import annotations

from collections import defaultdict
from contextlib import closing
from dataclasses import replace

import numpy as np

from dlio.dataset.manifest import File, Manifest, Shard
from dlio.dataset.sample_table import SampleTable
from dlio.errors import SchemaError
from dlio.io import files
from dlio.pack.index._layout import ListsClasses, NamesClasses, ShardLayout
from dlio.pack.index._scan import numbered_key
from dlio.pack.inspect.tables import keys_of, tables
from dlio.pack.listing.keys import Keys

_MAX_CLASSES = 1 << 20  # larger labels are not class indices


def with_distinct_keys(manifest: Manifest) -> tuple[Shard, ...]:
    """Returns the shards; rewrites the tables in which a key repeats that of an earlier record.

    Raises:
        SourceError: a new key equals that of another record.
        StorageError: a table cannot be written.
    """
    repeated: dict[int, list[int]] = defaultdict(list)
    for index in Keys.of(keys_of(manifest)).repeated():
        number, record = manifest.locate(index)
        repeated[number].append(record)
    if not repeated:
        return manifest.shards
    shards = list(manifest.shards)
    for number, records in repeated.items():
        shards[number] = _renamed(manifest, shards[number], records)
    renamed = replace(manifest, shards=tuple(shards))
    Keys.of(keys_of(renamed)).check_distinct(manifest.root)
    return renamed.shards


def _renamed(manifest: Manifest, shard: Shard, records: list[int]) -> Shard:
    path = manifest.root / shard.files[-1].name
    with closing(SampleTable(path, manifest.schema, shard.num_samples)) as table:
        keys = table.keys(0, shard.num_samples)
        for record in records:
            keys[record] = numbered_key(shard.name, record)
        content = table.with_keys(keys)
    files.publish_bytes(path, content)
    entry = File(shard.files[-1].name, len(content), files.digest_bytes(content))
    return shard.replace(files=(*shard.files[:-1], entry))


def class_names(manifest: Manifest, layout: ShardLayout) -> tuple[str, ...]:
    """Returns the name of each class, '' for a class without a name; empty if no class has a name.

    Raises:
        SchemaError: a label is less than the schema's offset.
        CorruptRecordError, StorageError: a record or table cannot be read.
    """
    if isinstance(layout, ListsClasses):
        return layout.listed_classes(manifest.root / manifest.shards[0].files[0].name, manifest.schema)
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
    for number, (_, table) in enumerate(tables(manifest)):
        labels, records = np.unique(table.field("label"), return_index=True)
        for label, record in zip(labels.tolist(), records.tolist(), strict=True):
            first.setdefault(label, (number, record))
    return first
