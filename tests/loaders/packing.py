"""Packs samples of any schema without a source, and damages them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from dlio import formats
from dlio.dataset import sample_table
from dlio.dataset.manifest import File, Manifest, Shard
from dlio.dataset.sample_table import SampleTableBuilder
from dlio.dataset.schema import Sample, Schema
from dlio.io.files import digest_file


def pack_samples(
    folder: Path, schema: Schema, samples: Sequence[Sample], *, num_shards: int, name: str = "tfrecord"
) -> Manifest:
    """Writes `samples` into `num_shards` shards in `folder` and returns their manifest, saved."""
    folder.mkdir(parents=True, exist_ok=True)
    shards = []
    for number in range(num_shards):
        rows = samples[number * len(samples) // num_shards : (number + 1) * len(samples) // num_shards]
        shards.append(_write_shard(folder / f"shard-{number:05}", schema, rows, name))
    manifest = Manifest(name, schema, tuple(shards), {"num_shards": num_shards}, folder)
    manifest.save(folder)
    return manifest


def _write_shard(stem: Path, schema: Schema, samples: Sequence[Sample], name: str) -> Shard:
    container = formats.load(name)
    writer, table = container.Writer(stem, schema), SampleTableBuilder(schema)
    for sample in samples:
        checked = schema.check(sample)
        writer.write(checked)
        table.append(checked)
    writer.close()
    stem.with_name(stem.name + sample_table.SUFFIX).write_bytes(table.to_bytes())
    records = stem.with_name(stem.name + container.SUFFIX)
    found = [path for path in stem.parent.rglob("*") if path.is_file() and stem.name in str(path)]
    paths = sorted(found, key=lambda path: (records not in (path, path.parent), path))
    files = [File(str(path.relative_to(stem.parent)), path.stat().st_size, digest_file(path)) for path in paths]
    return Shard(stem.name, len(samples), tuple(files))


def damage(manifest: Manifest, record: int, shard: int = 0) -> None:
    """Flips a bit in the middle of one record of a shard in TFRecord."""
    path = manifest.root / manifest.shards[shard].files[0].name
    extents = np.loadtxt(path.with_suffix(".idx"), dtype="int64")
    data = bytearray(path.read_bytes())
    data[extents[record].sum() - extents[record][1] // 2] ^= 1
    path.write_bytes(data)
