"""A loop that copies records out of one mapped file, and nothing else: what raw reading costs at least."""

from __future__ import annotations

import itertools
import mmap
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.loaders.tasks import BATCH_SIZE, Task
from benchmarks.pack_peers import images_below

NAME = "bare mmap copy loop"
PACKAGES = {"numpy": "numpy"}
TASKS = ("raw-sequential", "raw-shuffled")


def prepare(images: Path, out: Path) -> None:
    """Writes the images one after the other, and their bounds next to them."""
    bounds = [0]
    with (out / "records").open("wb") as records:
        for path, _ in images_below(images):
            bounds.append(bounds[-1] + records.write(path.read_bytes()))
    np.save(out / "bounds.npy", np.array(bounds))


def batches(data: Path, task: Task) -> Iterator[Any]:
    """Yields lists of bytes."""
    bounds = np.load(data / "bounds.npy").tolist()
    places = list(itertools.pairwise(bounds))
    with (data / "records").open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as records:
        while True:
            if task.shuffle:
                random.shuffle(places)
            for start in range(0, len(places) - BATCH_SIZE + 1, BATCH_SIZE):
                yield [records[begin:end] for begin, end in places[start : start + BATCH_SIZE]]
