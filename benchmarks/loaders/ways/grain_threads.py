"""Grain over ArrayRecord, with two reading threads, decoded by simplejpeg and OpenCV in them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.loaders.tasks import BATCH_SIZE, NUM_WORKERS, Task
from benchmarks.pack_peers import images_below

NAME = "Grain"
PACKAGES = {"grain": "grain", "benchmarks.loaders.decode": "simplejpeg"}
TASKS = ("jpeg", "png", "raw-sequential", "raw-shuffled")
NUM_SHARDS = 16


def prepare(images: Path, out: Path) -> None:
    """Writes ArrayRecord shards, a record a group as Grain's documentation wants for random access."""
    from array_record.python.array_record_module import ArrayRecordWriter

    samples = images_below(images)
    for shard in range(NUM_SHARDS):
        writer = ArrayRecordWriter(str(out / f"{shard:02d}.array_record"), "group_size:1,uncompressed")
        for path, label in samples[shard::NUM_SHARDS]:
            writer.write(bytes([label]) + path.read_bytes())
        writer.close()


def batches(data: Path, task: Task) -> Iterator[Any]:
    """Yields arrays (n, height, width, 3), or lists of bytes."""
    import grain

    from benchmarks.loaders.decode import random_crop

    source = grain.sources.ArrayRecordDataSource(sorted(map(str, data.glob("*.array_record"))))
    samples = grain.MapDataset.source(source)
    samples = (samples.shuffle(0) if task.shuffle else samples).repeat()
    if task.pixels:
        samples = samples.map(lambda record: random_crop(record[1:], task.pixels))
        yield from samples.to_iter_dataset(grain.ReadOptions(num_threads=NUM_WORKERS, prefetch_buffer_size=512)).batch(
            BATCH_SIZE
        )
    yield from samples.to_iter_dataset(grain.ReadOptions(num_threads=NUM_WORKERS, prefetch_buffer_size=512)).batch(
        BATCH_SIZE, batch_fn=list
    )
