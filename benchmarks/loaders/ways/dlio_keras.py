"""dlio's PyDataset for Keras, with unchanged JPEGs, asked for its batches in turn as Keras does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.loaders.tasks import BATCH_SIZE, NUM_WORKERS, Task
from benchmarks.loaders.ways.dlio_plain import prepare, transform_of

__all__ = ["NAME", "PACKAGES", "TASKS", "batches", "prepare"]

NAME = "dlio.loaders.keras"
PACKAGES = {"dlio.loaders.keras": "dlio-toolkit"}
TASKS = ("jpeg", "png")


def batches(data: Path, task: Task) -> Iterator[Any]:
    """Yields arrays (n, height, width, 3)."""
    from dlio.loaders.keras import PackedPyDataset

    options = {"transform": transform_of(task), "shuffle": task.shuffle, "end": "drop", "workers": NUM_WORKERS}
    dataset = PackedPyDataset(data / "packed", BATCH_SIZE, **options)
    while True:
        for index in range(len(dataset)):
            yield dataset[index][0]
        dataset.on_epoch_end()
