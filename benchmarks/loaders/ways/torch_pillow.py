"""torch's DataLoader over torchvision's ImageFolder and transforms, as in torchvision's training script."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.loaders.tasks import Task
from benchmarks.loaders.ways.torch_simplejpeg import load, prepare

__all__ = ["NAME", "PACKAGES", "TASKS", "batches", "prepare"]

NAME = "torch DataLoader, torchvision"
PACKAGES = {"benchmarks.loaders.torchvision_on_cpu": "torchvision", "torch.utils.data": "torch"}
TASKS = ("jpeg", "png")


def batches(data: Path, task: Task) -> Iterator[Any]:
    """Yields tensors (n, 3, height, width)."""
    from torchvision.datasets import ImageFolder
    from torchvision.transforms import v2

    steps = [v2.RandomResizedCrop(task.pixels), v2.RandomHorizontalFlip(), v2.PILToTensor()]
    yield from load(ImageFolder(data / "images", v2.Compose(steps)), task)
