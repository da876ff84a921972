"""The tables of all shards of a packed data set, one after the other; several are opened ahead if that takes long."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from functools import partial

from dlio.dataset.manifest import Manifest, Shard
from dlio.dataset.reader import open_table
from dlio.dataset.sample_table import SampleTable
from dlio.errors import SourceError
from dlio.pack.prefetch import side_by_side


def open_tables(manifest: Manifest) -> Iterator[tuple[Shard, SampleTable | None]]:
    """Yields each shard and its table, open until the next one, None for one without; raises as `open_table`."""
    opened = side_by_side(partial(open_table, manifest), manifest.shards)
    for shard, table in zip(manifest.shards, opened, strict=True):
        if table is None:
            yield shard, None
            continue
        with closing(table):
            yield shard, table


def tables(manifest: Manifest) -> Iterator[tuple[Shard, SampleTable]]:
    """Yields each shard and its table as `open_tables`; raises SourceError for a shard without."""
    for shard, table in open_tables(manifest):
        if table is None:
            problem = f"the shard {shard.name} has no table of samples: pack the data set again"
            raise SourceError(f"{manifest.root}: {problem}")
        yield shard, table


def keys_of(manifest: Manifest) -> Iterator[str]:
    """Yields the keys of all samples; raises as `tables`."""
    return (key for shard, table in tables(manifest) for key in table.keys(0, shard.num_samples))
