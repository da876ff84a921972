"""dlio's loader for JAX, with unchanged JPEGs: global arrays, here on the CPU's one device."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.loaders.tasks import BATCH_SIZE, NUM_WORKERS, Task
from benchmarks.loaders.ways.dlio_plain import prepare, transform_of

__all__ = ["NAME", "PACKAGES", "TASKS", "batches", "prepare"]

NAME = "dlio.loaders.jax"
PACKAGES = {"dlio.loaders.jax": "dlio-toolkit"}
TASKS = ("jpeg", "png")


def batches(data: Path, task: Task) -> Iterator[Any]:
    """Yields arrays (n, height, width, 3) of JAX."""
    from dlio.loaders.jax import DataLoader

    options = {"transform": transform_of(task), "shuffle": task.shuffle, "end": "drop", "num_workers": NUM_WORKERS}
    loader = DataLoader(data / "packed", BATCH_SIZE, **options)
    while True:
        for images, _ in loader:
            yield images
