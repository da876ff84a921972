"""torch's DataLoader over files, decoded by simplejpeg and OpenCV in worker processes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.loaders.tasks import BATCH_SIZE, NUM_WORKERS, Task
from benchmarks.pack_peers import images_below

NAME = "torch DataLoader, files"
PACKAGES = {"torch.utils.data": "torch", "benchmarks.loaders.decode": "simplejpeg"}
TASKS = ("jpeg", "png", "raw-sequential", "raw-shuffled")


class Files:
    """A map-style data set: reads a file for each sample, and decodes it where there are pixels to make."""

    def __init__(self, root: Path, pixels: int | None) -> None:
        self.images = [(str(path), label) for path, label in images_below(root)]
        self.pixels = pixels

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> Any:
        """Returns the image or its bytes, and the label."""
        from benchmarks.loaders.decode import random_crop

        path, label = self.images[index]
        data = Path(path).read_bytes()
        return (random_crop(data, self.pixels) if self.pixels else data), label


def prepare(images: Path, out: Path) -> None:
    """Reads the files where they are."""
    (out / "images").symlink_to(images)


def batches(data: Path, task: Task) -> Iterator[Any]:
    """Yields tensors (n, height, width, 3), or tuples of bytes."""
    yield from load(Files(data / "images", task.pixels), task)


def load(samples: Any, task: Task, start: str | None = None) -> Iterator[Any]:
    """Yields the images of torch's DataLoader over `samples`; `start` says how its processes are started."""
    from torch.utils.data import DataLoader

    options: dict[str, Any] = {"num_workers": NUM_WORKERS, "drop_last": True, "persistent_workers": True}
    loader = DataLoader(samples, BATCH_SIZE, task.shuffle, multiprocessing_context=start, **options)
    while True:
        for images, _ in loader:
            yield images
