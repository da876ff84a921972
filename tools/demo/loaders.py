"""Prints how many images a second each loader gives from a data set: python tools/demo/loaders.py DATASET."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable
from typing import Any

from dlio.images import RandomResizedCrop

BATCH_SIZE = 64
TRANSFORM = RandomResizedCrop(224, flip=True)


def dlio_torch(path: str) -> Iterable[Any]:
    """dlio.loaders.torch.DataLoader: threads that decode whole batches."""
    from dlio.loaders.torch import DataLoader, PackedDataset

    return DataLoader(PackedDataset(path, transform=TRANSFORM), batch_size=BATCH_SIZE, shuffle=True, num_workers=2)


def torch_processes(path: str) -> Iterable[Any]:
    """torch.utils.data.DataLoader over dlio's PackedDataset: two worker processes."""
    from torch.utils.data import DataLoader

    from dlio.loaders.torch import PackedDataset

    return DataLoader(PackedDataset(path, transform=TRANSFORM), batch_size=BATCH_SIZE, shuffle=True, num_workers=2)


def dlio_tensorflow(path: str) -> Iterable[Any]:
    """dlio.loaders.tensorflow.dataset: a tf.data.Dataset."""
    from dlio.loaders.tensorflow import dataset

    return dataset(path, batch_size=BATCH_SIZE, transform=TRANSFORM, shuffle=True, seed=0)


LOADERS: list[Callable[[str], Iterable[Any]]] = [dlio_torch, torch_processes, dlio_tensorflow]


def main(path: str) -> None:
    """Takes one epoch with each loader; making the loader counts, importing its framework does not."""
    for make in LOADERS:
        make(path)
        began = time.monotonic()
        images = sum(len(batch) for batch, _ in make(path))
        rate = images / (time.monotonic() - began)
        print(f"{rate:8.0f} images/s  {images} images of 224 x 224  {make.__doc__}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
