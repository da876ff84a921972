"""What one rank of dlio gives besides speed: threads that scale, an accelerator kept busy, memory that stays flat."""

from __future__ import annotations

import os
import statistics
import time
from itertools import islice
from pathlib import Path

from benchmarks.loaders.process_tree import memory_bytes
from benchmarks.loaders.tasks import BATCH_SIZE, TASKS
from benchmarks.loaders.ways.dlio_plain import batches

STEP_SECONDS, STEP_BATCH, STEP_THREADS = 0.224, 400, 8  # MLPerf Storage's emulated accelerator, for ResNet-50
NUM_STEPS = 30
NUM_EPOCHS = 5
WARM_UP, MEASURED, NUM_ROUNDS = 3, 8, 3  # batches, and rounds of them


def measure(plain: Path, crop_ready: Path) -> dict[str, float]:
    """Returns the figures by name, for the data sets that the two ways of dlio read."""
    one, two = zip(*((seconds(crop_ready, 1), seconds(crop_ready, 2)) for _ in range(NUM_ROUNDS)), strict=True)
    epochs = memory_of_epochs(crop_ready)
    return {
        "speedup": statistics.median(one) / statistics.median(two),
        "busy": accelerator_busy(plain),
        "memory_first": epochs[0],
        "memory_last": epochs[-1],
    }


def seconds(data: Path, num_threads: int) -> float:
    """Returns how long some batches take, once running."""
    running = batches(data, TASKS["jpeg"], num_threads)
    _take(running, WARM_UP)
    began = time.perf_counter()
    _take(running, MEASURED)
    return time.perf_counter() - began


def accelerator_busy(data: Path) -> float:
    """Returns the share of the time that an accelerator computes, which takes records as they are; start included."""
    began = time.perf_counter()
    for _ in islice(batches(data, TASKS["raw-shuffled"], STEP_THREADS, STEP_BATCH), NUM_STEPS):
        time.sleep(STEP_SECONDS)
    return NUM_STEPS * STEP_SECONDS / (time.perf_counter() - began)


def memory_of_epochs(data: Path) -> list[float]:
    """Returns the memory of the process in MB at most, in each of some epochs."""
    running = batches(data, TASKS["jpeg"])
    length = 6000 // BATCH_SIZE
    return [max(_memory(running) for _ in range(length)) for _ in range(NUM_EPOCHS)]


def _memory(running: object) -> float:
    _take(running, 1)
    return memory_bytes(os.getpid()) / 1e6


def _take(running: object, count: int) -> None:
    assert sum(1 for _ in islice(running, count)) == count  # type: ignore[call-overload]
