"""dlio's tf.data.Dataset, with unchanged JPEGs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.loaders.tasks import BATCH_SIZE, NUM_WORKERS, Task
from benchmarks.loaders.ways.dlio_plain import prepare, transform_of

__all__ = ["NAME", "PACKAGES", "TASKS", "batches", "prepare"]

NAME = "dlio.loaders.tensorflow"
PACKAGES = {"dlio.loaders.tensorflow": "dlio-toolkit"}
TASKS = ("jpeg", "png", "raw-sequential", "raw-shuffled")


def batches(data: Path, task: Task) -> Iterator[Any]:
    """Yields arrays (n, height, width, 3), or of strings."""
    import tensorflow as tf

    from dlio.loaders.tensorflow import dataset

    tf.config.threading.set_intra_op_parallelism_threads(NUM_WORKERS)
    tf.config.threading.set_inter_op_parallelism_threads(NUM_WORKERS)
    options = {"transform": transform_of(task), "shuffle": task.shuffle, "drop_remainder": True}
    for images, _ in dataset(data / "packed", BATCH_SIZE, **options).repeat().as_numpy_iterator():
        yield images
