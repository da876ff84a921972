"""SPDL: its pipeline of threads and its own decoder (FFmpeg's), with crop, scale and flip as FFmpeg filters."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tools.bench.images import images_below
from tools.bench.loaders.tasks import BATCH_SIZE, NUM_WORKERS, Task
from tools.bench.loaders.ways.torch_simplejpeg import prepare

__all__ = ["NAME", "PACKAGES", "TASKS", "batches", "prepare"]

NAME = "SPDL"
PACKAGES = {"spdl.io": "spdl-io", "spdl.pipeline": "spdl-core"}
TASKS = ("jpeg", "png")
CROP = "crop=w={2}:h={3}:x={0}:y={1}"


def batches(data: Path, task: Task) -> Iterator[Any]:
    """Yields arrays (n, height, width, 3)."""
    import spdl.io
    from spdl.pipeline import PipelineBuilder

    from tools.bench.loaders.decode import random_box

    paths = [str(path) for path, _ in images_below(data / "images")]
    pixels = task.pixels or 0

    def decode(path: str) -> Any:
        packets = spdl.io.demux_image(path)
        top, left, height, width = random_box(packets.height, packets.width)
        flip = ["hflip"] if random.random() < 0.5 else []
        crop = [f"crop=w={width}:h={height}:x={left}:y={top}", f"scale={pixels}:{pixels}:flags=bilinear"]
        return spdl.io.decode_packets(packets, filter_desc=",".join([*crop, *flip, "format=pix_fmts=rgb24"]))

    def collate(frames: list[Any]) -> Any:
        return spdl.io.to_numpy(spdl.io.convert_frames(frames))

    order = (path for _ in itertools.count() for path in random.sample(paths, len(paths)))
    pipeline = (
        PipelineBuilder()
        .add_source(order)
        .pipe(decode, concurrency=NUM_WORKERS)
        .aggregate(BATCH_SIZE)
        .pipe(collate)
        .add_sink(2)
        .build(num_threads=NUM_WORKERS)
    )
    with pipeline.auto_stop():
        yield from pipeline
