"""FFCV with JPEGs in its file; it re-encodes images, here at the quality of most of the originals."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.loaders.tasks import BATCH_SIZE, NUM_WORKERS, Task
from benchmarks.pack_peers import images_below

NAME = "FFCV (JPEG)"
PACKAGES = {"ffcv": "ffcv"}
TASKS = ("jpeg",)


class Images:
    """What FFCV's writer reads."""

    def __init__(self, root: Path) -> None:
        self.images = images_below(root)

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> Any:
        """Returns the image as Pillow's, and the label."""
        from PIL import Image

        path, label = self.images[index]
        return Image.open(path).convert("RGB"), label


def prepare(images: Path, out: Path) -> None:
    """Writes one file of JPEGs."""
    from ffcv.fields import IntField, RGBImageField
    from ffcv.writer import DatasetWriter

    fields = {"image": RGBImageField(write_mode="jpg", jpeg_quality=97), "label": IntField()}
    DatasetWriter(str(out / "images.beton"), fields, num_workers=NUM_WORKERS).from_indexed_dataset(Images(images))


def batches(data: Path, task: Task) -> Iterator[Any]:
    """Yields tensors (n, 3, height, width)."""
    from ffcv.fields.decoders import IntDecoder, RandomResizedCropRGBImageDecoder
    from ffcv.loader import Loader, OrderOption
    from ffcv.transforms import RandomHorizontalFlip, ToTensor, ToTorchImage

    size = (task.pixels or 0, task.pixels or 0)
    image = [RandomResizedCropRGBImageDecoder(size), RandomHorizontalFlip(), ToTensor(), ToTorchImage()]
    loader = Loader(
        str(data / "images.beton"),
        batch_size=BATCH_SIZE,
        num_workers=NUM_WORKERS,
        order=OrderOption.RANDOM,
        os_cache=True,
        drop_last=True,
        pipelines={"image": image, "label": [IntDecoder(), ToTensor()]},
    )
    while True:
        for images, *_ in loader:
            yield images
