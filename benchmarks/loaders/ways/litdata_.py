"""LitData: its optimised chunks and StreamingDataLoader, decoded by simplejpeg and OpenCV."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.loaders.tasks import BATCH_SIZE, NUM_WORKERS, Task
from benchmarks.pack_peers import images_below

NAME = "LitData"
PACKAGES = {"litdata": "litdata", "benchmarks.loaders.decode": "simplejpeg"}
TASKS = ("jpeg", "png", "raw-sequential", "raw-shuffled")


def _sample(image: tuple[str, int]) -> dict[str, Any]:
    return {"image": Path(image[0]).read_bytes(), "label": image[1]}


def _as_they_are(samples: list[dict[str, Any]]) -> dict[str, list[Any]]:
    return {name: [sample[name] for sample in samples] for name in samples[0]}


def prepare(images: Path, out: Path) -> None:
    """Writes chunks of 64 MB, LitData's usual size."""
    from litdata import optimize

    inputs = [(str(path), label) for path, label in images_below(images)]
    optimize(_sample, inputs, str(out / "chunks"), chunk_bytes="64MB", num_workers=NUM_WORKERS)


def batches(data: Path, task: Task) -> Iterator[Any]:
    """Yields tensors (n, height, width, 3), or lists of bytes."""
    from litdata import StreamingDataLoader, StreamingDataset

    from benchmarks.loaders.decode import random_crop

    class Crops(StreamingDataset):
        """Decodes where there are pixels to make."""

        def __getitem__(self, index: Any) -> Any:
            sample = super().__getitem__(index)
            view = sample["image"]
            image = random_crop(view, task.pixels) if task.pixels else bytes(view)
            return {"image": image, "label": sample["label"]}

    samples = Crops(str(data / "chunks"), shuffle=task.shuffle, drop_last=True)
    workers = NUM_WORKERS if task.pixels else 0  # sending records on from other processes costs more than reading them
    collate = None if task.pixels else _as_they_are
    loader = StreamingDataLoader(
        samples, batch_size=BATCH_SIZE, num_workers=workers, drop_last=True, collate_fn=collate
    )
    while True:
        for batch in loader:
            if len(batch["image"]) == BATCH_SIZE:
                yield batch["image"]
