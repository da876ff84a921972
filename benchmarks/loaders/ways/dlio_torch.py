"""dlio's DataLoader for torch, with JPEGs as they are."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.loaders.tasks import BATCH_SIZE, NUM_WORKERS, Task
from benchmarks.loaders.ways.dlio_plain import prepare, transform_of

__all__ = ["NAME", "PACKAGES", "TASKS", "batches", "prepare"]

NAME = "dlio.loaders.torch"
PACKAGES = {"dlio.loaders.torch": "dlio-toolkit"}
TASKS = ("jpeg", "png")


def batches(data: Path, task: Task) -> Iterator[Any]:
    """Yields arrays (n, 3, height, width)."""
    from dlio.loaders.torch import DataLoader, PackedDataset

    dataset = PackedDataset(data / "packed", transform=transform_of(task))
    loader = DataLoader(dataset, BATCH_SIZE, shuffle=task.shuffle, num_workers=NUM_WORKERS, drop_last=True)
    while True:
        for images, _ in loader:
            yield images.numpy()
