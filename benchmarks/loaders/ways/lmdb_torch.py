"""LMDB under torch's DataLoader: each worker process opens the database, decodes by simplejpeg and OpenCV."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.loaders.tasks import Task
from benchmarks.loaders.ways.torch_simplejpeg import load
from benchmarks.pack_peers import images_below

NAME = "LMDB, torch DataLoader"
PACKAGES = {"lmdb": "lmdb", "torch.utils.data": "torch", "benchmarks.loaders.decode": "simplejpeg"}
TASKS = ("jpeg", "png", "raw-sequential", "raw-shuffled")


class Records:
    """A map-style data set over an LMDB database, opened in the process that uses it."""

    def __init__(self, path: Path, pixels: int | None) -> None:
        self.path, self.pixels = path, pixels
        self.transaction: Any = None
        with _open(path) as database:
            self.length = database.stat()["entries"]

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        """Returns the image or its bytes, and the label."""
        from benchmarks.loaders.decode import random_crop

        if self.transaction is None:
            self.transaction = _open(self.path).begin(buffers=True)
        record = self.transaction.get(index.to_bytes(8, "big"))
        image = random_crop(record[1:], self.pixels) if self.pixels else bytes(record[1:])
        return image, record[0]


def _open(path: Path) -> Any:
    import lmdb

    return lmdb.open(str(path), subdir=False, readonly=True, lock=False, readahead=False, meminit=False)


def prepare(images: Path, out: Path) -> None:
    """Puts a byte of label and the image, by number."""
    import lmdb

    with lmdb.open(str(out / "records"), subdir=False, map_size=1 << 40) as database, database.begin(write=True) as put:
        for number, (path, label) in enumerate(images_below(images)):
            put.put(number.to_bytes(8, "big"), bytes([label]) + path.read_bytes(), append=True)


def batches(data: Path, task: Task) -> Iterator[Any]:
    """Yields tensors (n, height, width, 3), or tuples of bytes."""
    yield from load(Records(data / "records", task.pixels), task)
