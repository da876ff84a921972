"""MosaicML's MDS under its StreamingDataLoader, decoded by simplejpeg and OpenCV in worker processes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.loaders.tasks import BATCH_SIZE, NUM_WORKERS, Task
from benchmarks.pack_peers import images_below

NAME = "MDS"
PACKAGES = {
    "benchmarks.loaders.torchvision_on_cpu": "mosaicml-streaming",
    "streaming": "mosaicml-streaming",
    "benchmarks.loaders.decode": "simplejpeg",
}
TASKS = ("jpeg", "png", "raw-sequential", "raw-shuffled")


def prepare(images: Path, out: Path) -> None:
    """Writes shards of 64 MB, its usual size."""
    from streaming import MDSWriter

    with MDSWriter(out=str(out / "shards"), columns={"image": "bytes", "label": "int"}) as writer:
        for path, label in images_below(images):
            writer.write({"image": path.read_bytes(), "label": label})


def batches(data: Path, task: Task) -> Iterator[Any]:
    """Yields tensors (n, height, width, 3), or lists of bytes."""
    from streaming import StreamingDataLoader, StreamingDataset
    from streaming.base.util import clean_stale_shared_memory

    from benchmarks.loaders.decode import random_crop

    class Crops(StreamingDataset):
        """Decodes where there are pixels to make."""

        def __getitem__(self, index: Any) -> Any:
            sample = super().__getitem__(index)
            image = random_crop(sample["image"], task.pixels) if task.pixels else sample["image"]
            return image, sample["label"]

    clean_stale_shared_memory()
    samples = Crops(local=str(data / "shards"), shuffle=task.shuffle, batch_size=BATCH_SIZE)
    workers = NUM_WORKERS if task.pixels else 0  # sending records on from other processes costs more than reading them
    loader = StreamingDataLoader(samples, batch_size=BATCH_SIZE, num_workers=workers, drop_last=True)
    while True:
        for images, _ in loader:
            yield images
