"""dlio with unchanged JPEGs."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from operator import itemgetter
from pathlib import Path
from typing import Any

from benchmarks.loaders.tasks import BATCH_SIZE, NUM_WORKERS, Task

NAME = "dlio"
PACKAGES = {"dlio.loaders.loader": "dlio-toolkit"}
TASKS = ("jpeg", "png", "raw-sequential", "raw-shuffled")


def prepare(images: Path, out: Path, *options: str) -> None:
    """Packs into 16 shards."""
    words = ["pack", str(images), str(out / "packed"), "--format", "recordio", "--num-shards", "16", "--quiet"]
    subprocess.run([sys.executable, "-m", "dlio", *words, *options], check=True)


def transform_of(task: Task) -> Any:
    """Returns the transform that a task asks for, None where it wants records as they are stored."""
    from dlio.images import CutMix, Mixup, RandomChoice, RandomErasing, RandomResizedCrop, TrivialAugmentWide

    if task.recipe:
        mixes = RandomChoice([Mixup(0.2), CutMix(1.0)])
        effects = [TrivialAugmentWide(interpolation="bilinear"), RandomErasing(0.1), mixes]
        return [RandomResizedCrop(task.pixels, flip=True), *effects]
    return RandomResizedCrop(task.pixels, flip=True) if task.pixels else None


def batches(data: Path, task: Task, num_threads: int = NUM_WORKERS, batch_size: int = BATCH_SIZE) -> Iterator[Any]:
    """Yields arrays (n, 3, height, width), or lists of bytes."""
    from dlio.loaders.batch_sources import ArrayBatches
    from dlio.loaders.dataset import PackedSamples
    from dlio.loaders.loader import Loader

    samples = PackedSamples(data / "packed", transform_of(task))
    loader = Loader(ArrayBatches(samples), batch_size, shuffle=task.shuffle, num_workers=num_threads, end="drop")
    while True:
        yield from map(itemgetter("image"), loader)
