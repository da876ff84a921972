"""The tables of all shards of a packed data set, one after the other; several are opened ahead if that takes long."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from functools import partial

from dlio.dataset.manifest import Manifest, Shard
from dlio.dataset.reader import open_table
from dlio.dataset.sample_table import PartTable, SampleTable
from dlio.pack.prefetch import side_by_side


def open_tables(manifest: Manifest) -> Iterator[tuple[Shard, SampleTable | PartTable | None]]:
    """Yields each shard and its table, which stays open until the next one; None for a shard without.

    Raises:
        CorruptRecordError, StorageError: as `open_table`.
    """
    opened = side_by_side(partial(open_table, manifest), manifest.shards)
    for shard, table in zip(manifest.shards, opened, strict=True):
        if table is None:
            yield shard, None
            continue
        with closing(table):
            yield shard, table
