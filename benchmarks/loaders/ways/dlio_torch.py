"""dlio's DataLoader for torch, with unchanged JPEGs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.loaders.tasks import BATCH_SIZE, NUM_WORKERS, Task
from benchmarks.loaders.ways.dlio_plain import prepare, transform_of

__all__ = ["NAME", "PACKAGES", "TASKS", "batches", "prepare"]

NAME = "dlio.loaders.torch"
PACKAGES = {"dlio.loaders.torch": "dlio-toolkit"}
TASKS = ("jpeg", "recipe", "png")


def batches(data: Path, task: Task) -> Iterator[Any]:
    """Yields arrays (n, 3, height, width)."""
    from dlio.images import Normalize
    from dlio.loaders.torch import DataLoader, PackedDataset

    dataset = PackedDataset(data / "packed", transform=transform_of(task))
    loader = DataLoader(dataset, BATCH_SIZE, shuffle=task.shuffle, num_workers=NUM_WORKERS, drop_last=True)
    normalize = Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    while True:
        for images, _ in loader:
            yield normalize(images).numpy() if task.recipe else images.numpy()
