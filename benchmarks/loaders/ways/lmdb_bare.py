"""A loop of LMDB's get, and nothing else: no target, a mark to compare raw reading with."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.loaders.tasks import BATCH_SIZE, Task
from benchmarks.loaders.ways.lmdb_torch import _open, prepare

__all__ = ["NAME", "PACKAGES", "TASKS", "batches", "prepare"]

NAME = "bare LMDB loop"
PACKAGES = {"lmdb": "lmdb"}
TASKS = ("raw-sequential", "raw-shuffled")


def batches(data: Path, task: Task) -> Iterator[Any]:
    """Yields lists of bytes."""
    with _open(data / "records") as database, database.begin() as transaction:
        keys = [number.to_bytes(8, "big") for number in range(database.stat()["entries"])]
        while True:
            if task.shuffle:
                random.shuffle(keys)
            for start in range(0, len(keys) - BATCH_SIZE + 1, BATCH_SIZE):
                yield [transaction.get(key) for key in keys[start : start + BATCH_SIZE]]
