"""torch's DataLoader over torchvision's ImageFolder and transforms, as in torchvision's training script."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.loaders.tasks import BATCH_SIZE, NUM_WORKERS, Task
from benchmarks.loaders.ways.torch_simplejpeg import load, prepare

__all__ = ["NAME", "PACKAGES", "TASKS", "batches", "prepare"]

NAME = "torch DataLoader, torchvision"
PACKAGES = {"benchmarks.loaders.torchvision_on_cpu": "torchvision", "torch.utils.data": "torch"}
TASKS = ("jpeg", "recipe", "png")


def batches(data: Path, task: Task) -> Iterator[Any]:
    """Yields tensors (n, 3, height, width)."""
    from torchvision.datasets import ImageFolder
    from torchvision.transforms import v2

    if task.recipe:
        yield from _by_recipe(ImageFolder(data / "images"), task)
        return
    steps = [v2.RandomResizedCrop(task.pixels), v2.RandomHorizontalFlip(), v2.PILToTensor()]
    yield from load(ImageFolder(data / "images", v2.Compose(steps)), task)


def _by_recipe(folder: Any, task: Task) -> Iterator[Any]:
    """Yields batches as torchvision's references/classification makes them for ResNet-50, in worker processes."""
    import torch
    from torch.utils.data import DataLoader
    from torchvision import transforms
    from torchvision.transforms import v2

    steps = [
        v2.RandomResizedCrop(task.pixels),
        v2.RandomHorizontalFlip(),
        transforms.TrivialAugmentWide(interpolation=transforms.InterpolationMode.BILINEAR),
        v2.PILToTensor(),
        v2.ToDtype(torch.float32, scale=True),
        v2.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
        v2.RandomErasing(0.1),
    ]
    folder.transform = v2.Compose(steps)
    count = len(folder.classes)
    mix = v2.RandomChoice([v2.MixUp(alpha=0.2, num_classes=count), v2.CutMix(alpha=1.0, num_classes=count)])
    loader = DataLoader(
        folder,
        BATCH_SIZE,
        task.shuffle,
        num_workers=NUM_WORKERS,
        collate_fn=partial(_mixed, mix),
        drop_last=True,
        persistent_workers=True,
    )
    while True:
        for images, _ in loader:
            yield images


def _mixed(mix: Any, samples: Any) -> Any:
    from torch.utils.data import default_collate

    return mix(*default_collate(samples))
