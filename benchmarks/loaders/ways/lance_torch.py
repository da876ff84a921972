"""LanceDB's data set under torch's DataLoader: a batch of rows at a time, decoded by simplejpeg and OpenCV."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.loaders.tasks import Task
from benchmarks.loaders.ways.torch_simplejpeg import load
from benchmarks.pack_peers import images_below

NAME = "Lance, torch DataLoader"
PACKAGES = {"lance.torch.data": "pylance", "torch.utils.data": "torch", "benchmarks.loaders.decode": "simplejpeg"}
TASKS = ("jpeg", "png", "raw-sequential", "raw-shuffled")
_ROWS = 1024  # written together


class Rows:
    """A map-style data set over SafeLanceDataset, which each process opens for itself."""

    def __init__(self, path: Path, pixels: int | None) -> None:
        from lance.torch.data import SafeLanceDataset

        self.rows, self.pixels = SafeLanceDataset(str(path)), pixels

    def __len__(self) -> int:
        return len(self.rows)

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """Returns the images or their bytes, and the labels."""
        from benchmarks.loaders.decode import random_crop

        rows = self.rows.__getitems__(list(indices))
        return [(random_crop(r["image"], self.pixels) if self.pixels else r["image"], r["label"]) for r in rows]

    def __getitem__(self, index: int) -> Any:
        """Returns one image or its bytes, and the label."""
        return self.__getitems__([index])[0]


def prepare(images: Path, out: Path) -> None:
    """Writes a table of images and labels."""
    import lance
    import pyarrow as pa

    schema = pa.schema({"image": pa.binary(), "label": pa.int64()})
    listed = images_below(images)

    def written() -> Iterator[Any]:
        for first in range(0, len(listed), _ROWS):
            some = listed[first : first + _ROWS]
            yield pa.record_batch([[path.read_bytes() for path, _ in some], [label for _, label in some]], schema)

    lance.write_dataset(written(), str(out / "table.lance"), schema=schema)


def batches(data: Path, task: Task) -> Iterator[Any]:
    """Yields tensors (n, height, width, 3), or tuples of bytes."""
    yield from load(Rows(data / "table.lance", task.pixels), task, "spawn")  # its threads do not survive a fork
