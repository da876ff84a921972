"""SPDL: its pipeline of threads, decoded by simplejpeg and OpenCV in them; its own decoder takes twice as long."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.loaders.tasks import BATCH_SIZE, NUM_WORKERS, Task
from benchmarks.loaders.ways.torch_simplejpeg import prepare
from benchmarks.pack_peers import images_below

__all__ = ["NAME", "PACKAGES", "TASKS", "batches", "prepare"]

NAME = "SPDL"
PACKAGES = {"spdl.pipeline": "spdl-core", "benchmarks.loaders.decode": "simplejpeg"}
TASKS = ("jpeg", "png", "raw-sequential", "raw-shuffled")


def batches(data: Path, task: Task) -> Iterator[Any]:
    """Yields arrays (n, height, width, 3), or lists of bytes."""
    import numpy as np
    from spdl.pipeline import PipelineBuilder

    from benchmarks.loaders.decode import random_crop

    paths = [str(path) for path, _ in images_below(data / "images")]

    def load(some: list[str]) -> Any:
        records = [Path(path).read_bytes() for path in some]
        return np.stack([random_crop(record, task.pixels) for record in records]) if task.pixels else records

    order = (path for _ in itertools.count() for path in (random.sample(paths, len(paths)) if task.shuffle else paths))
    pipeline = (
        PipelineBuilder()
        .add_source(order)
        .aggregate(BATCH_SIZE)
        .pipe(load, concurrency=NUM_WORKERS)
        .add_sink(2)
        .build(num_threads=NUM_WORKERS)
    )
    with pipeline.auto_stop():
        yield from pipeline
