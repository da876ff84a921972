"""A transform written in Python, in as many processes: dlio's DataLoader against torch's, in turns.

    python -m benchmarks.python_transform FOLDER [--workers 2] [--rounds 3]

FOLDER holds class folders of JPEGs (`benchmarks.images` makes some). The transform is a function of the PIL image: a
random crop of 224 pixels by Pillow, a flip, and a tensor, as torchvision's RandomResizedCrop and PILToTensor make them.
torch's DataLoader reads the files, and the packed set through PackedDataset. Times are those of whole epochs, with the
start of the workers.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
import torch.utils.data
from PIL import Image

import dlio
from benchmarks.loaders.process_tree import cpu_seconds
from dlio.loaders.torch import DataLoader, PackedDataset

BATCH, SIZE = 64, 224


def transform(image: Image.Image) -> torch.Tensor:
    """Returns uint8 (3, 224, 224)."""
    width, height = image.size
    side = random.uniform(0.3, 1) * min(width, height)
    left, top = random.uniform(0, width - side), random.uniform(0, height - side)
    image = image.resize((SIZE, SIZE), Image.Resampling.BILINEAR, (left, top, left + side, top + side))
    if random.random() < 0.5:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    return torch.from_numpy(np.array(image)).permute(2, 0, 1)


class Files(torch.utils.data.Dataset[Any]):
    """The files of class folders, as torchvision's ImageFolder reads them."""

    def __init__(self, root: Path) -> None:
        classes = sorted(root.iterdir())
        self.files = [(path, label) for label, folder in enumerate(classes) for path in sorted(folder.iterdir())]

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        path, label = self.files[index]
        with Image.open(path) as image:
            return transform(image.convert("RGB")), label


def measured(batches: Iterable[Any], count: int) -> tuple[float, float]:
    """Returns the microseconds of CPU time an image, and those by the clock, of an epoch."""
    began, used = time.perf_counter(), cpu_seconds()
    seen = sum(len(labels) for _, labels in batches)
    assert seen == count, f"{seen} of {count} images"
    return (cpu_seconds() - used) / count * 1e6, (time.perf_counter() - began) / count * 1e6


def main() -> None:
    """Prints a line for each way: the least and the median of its rounds."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as aside:
        packed = PackedDataset(dlio.pack(options.folder, Path(aside) / "packed", num_shards=8), transform)
        theirs = torch.utils.data.DataLoader
        words = {"batch_size": BATCH, "shuffle": True, "num_workers": options.workers}
        ways: dict[str, Callable[[], Iterable[Any]]] = {
            "dlio's DataLoader": lambda: DataLoader(packed, **words),
            "torch's, the packed set": lambda: theirs(packed, **words),
            "torch's, the files": lambda: theirs(Files(options.folder), **words),
        }
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
        for _ in range(options.rounds):
            for name, make in ways.items():
                found[name].append(measured(make(), len(packed)))
    for name, times in found.items():
        cpu, clock = zip(*times, strict=True)
        by_clock = f"clock {min(clock):7,.0f} to {median(clock):7,.0f} us"
        print(f"{name:24} CPU {min(cpu):7,.0f} to {median(cpu):7,.0f} us   {by_clock}")


if __name__ == "__main__":
    main()
