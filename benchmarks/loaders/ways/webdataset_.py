"""webdataset under its WebLoader, decoded by simplejpeg and OpenCV in worker processes, batched in them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.loaders.tasks import BATCH_SIZE, NUM_WORKERS, Task
from benchmarks.pack_peers import images_below

NAME = "webdataset"
PACKAGES = {"webdataset": "webdataset", "torch.utils.data": "torch", "benchmarks.loaders.decode": "simplejpeg"}
TASKS = ("jpeg", "png", "raw-sequential", "raw-shuffled")
NUM_SHARDS = 16


def prepare(images: Path, out: Path) -> None:
    """Writes tar shards."""
    import webdataset

    samples = images_below(images)
    for shard in range(NUM_SHARDS):
        with webdataset.TarWriter(str(out / f"{shard:02d}.tar")) as writer:
            for path, label in samples[shard::NUM_SHARDS]:
                writer.write({"__key__": path.stem, "image": path.read_bytes(), "cls": label})


def batches(data: Path, task: Task) -> Iterator[Any]:
    """Yields arrays (n, height, width, 3), or lists of bytes."""
    import webdataset

    from benchmarks.loaders.decode import random_crop

    def take(sample: dict[str, Any]) -> Any:
        image = sample["image"]
        return random_crop(image, task.pixels) if task.pixels else image, int(sample["cls"])

    shards = sorted(map(str, data.glob("*.tar")))
    samples = webdataset.WebDataset(
        shards, shardshuffle=NUM_SHARDS if task.shuffle else False, nodesplitter=webdataset.split_by_node
    ).repeat()
    if task.shuffle:
        samples = samples.shuffle(1000)
    samples = samples.map(take).batched(BATCH_SIZE, partial=False)
    workers = NUM_WORKERS if task.pixels else 0  # sending records on from other processes costs more than reading them
    for images, _ in webdataset.WebLoader(samples, batch_size=None, num_workers=workers):
        yield images
