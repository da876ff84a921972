"""Makes keys distinct in the whole data set; each shard was scanned alone."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

from dlio.dataset.manifest import File, Manifest, Shard
from dlio.dataset.sample_table import SampleTable
from dlio.io import files
from dlio.pack.index._scan import numbered_key
from dlio.pack.listing.keys import Keys


def tables(manifest: Manifest) -> Iterator[tuple[int, SampleTable]]:
    """Yields each shard's number and the table of its samples, which stays open until the next one."""
    for number, shard in enumerate(manifest.shards):
        path = manifest.root / shard.files[-1].name
        with closing(SampleTable(path, manifest.schema, shard.num_samples)) as table:
            yield number, table


def with_distinct_keys(manifest: Manifest) -> tuple[Shard, ...]:
    """Returns the shards; rewrites the tables in which a key repeats that of an earlier record.

    Raises:
        SourceError: a new key equals that of another record.
        StorageError: a table cannot be written.
    """
    repeated: dict[int, list[int]] = defaultdict(list)
    for index in _all_keys(manifest).repeated():
        number, record = manifest.locate(index)
        repeated[number].append(record)
    if not repeated:
        return manifest.shards
    shards = list(manifest.shards)
    for number, table in tables(manifest):
        if number in repeated:
            shards[number] = _renamed(manifest, shards[number], table, repeated[number])
    renamed = replace(manifest, shards=tuple(shards))
    _all_keys(renamed).check_distinct(manifest.root)
    return renamed.shards


def _all_keys(manifest: Manifest) -> Keys:
    counts = [shard.num_samples for shard in manifest.shards]
    return Keys.of(key for number, table in tables(manifest) for key in table.keys(0, counts[number]))


def _renamed(manifest: Manifest, shard: Shard, table: SampleTable, records: list[int]) -> Shard:
    keys = table.keys(0, shard.num_samples)
    for record in records:
        keys[record] = numbered_key(shard.name, record)
    content = table.with_keys(keys)
    files.publish_bytes(table.path, content)
    entry = File(shard.files[-1].name, len(content), files.digest_bytes(content))
    return shard._replace(files=(*shard.files[:-1], entry))
