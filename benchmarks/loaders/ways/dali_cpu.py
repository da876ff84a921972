"""NVIDIA DALI on the CPU: its own reader, fused decode and random crop, resize and flip."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.loaders.tasks import BATCH_SIZE, NUM_WORKERS, Task
from benchmarks.loaders.ways.torch_simplejpeg import prepare

__all__ = ["NAME", "PACKAGES", "TASKS", "batches", "prepare"]

NAME = "DALI (CPU)"
PACKAGES = {"nvidia.dali.plugin": "nvidia-dali-cuda120"}
TASKS = ("jpeg", "png", "raw-sequential", "raw-shuffled")


def batches(data: Path, task: Task) -> Iterator[Any]:
    """Yields arrays (n, height, width, 3), or lists of arrays of bytes."""
    from nvidia.dali import fn, pipeline_def, types

    @pipeline_def(batch_size=BATCH_SIZE, num_threads=NUM_WORKERS, device_id=None)
    def pipeline() -> Any:
        encoded, labels = fn.readers.file(
            file_root=str(data / "images"), random_shuffle=task.shuffle, initial_fill=1024, dont_use_mmap=True
        )
        if task.pixels is None:
            return encoded, labels
        crops = fn.decoders.image_random_crop(encoded, random_aspect_ratio=[3 / 4, 4 / 3], random_area=[0.08, 1.0])
        images = fn.resize(crops, size=[task.pixels, task.pixels], interp_type=types.INTERP_LINEAR, antialias=False)
        return fn.flip(images, horizontal=fn.random.coin_flip()), labels

    running = pipeline()
    running.build()
    while True:
        images, _ = running.run()
        yield images.as_array() if task.pixels else [images.at(row) for row in range(BATCH_SIZE)]
