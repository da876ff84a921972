"""What every way is asked to do, and what a way is."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from benchmarks.loaders import ways

BATCH_SIZE = 256
NUM_WORKERS = 2  # threads or processes, whichever the way works with


@dataclass(frozen=True, slots=True)
class Task:
    """One thing to do with a set of images, batch by batch, epoch after epoch.

    Attributes:
        name: as given to `--tasks`.
        title: what the table says.
        data: the set, of `benchmarks.images.SETS`.
        pixels: height and width of the crops, uint8; None hands out records as they are stored,
            copied, in memory of their own.
        shuffle: whether in random order.
        warm_up: images until the loader counts as running; it is measured over twice as many.
        recipe: whether to augment, mix and normalise as torchvision's reference recipe of 2022, to float32.
    """

    name: str
    title: str
    data: str
    pixels: int | None
    shuffle: bool
    warm_up: int
    recipe: bool = False

    @property
    def batch_bytes(self) -> int:
        """The size of a batch of images."""
        return BATCH_SIZE * (self.pixels or 0) ** 2 * 3 * (4 if self.recipe else 1)


TASKS = {
    task.name: task
    for task in (
        Task("jpeg", "JPEGs of 92 KB, RandomResizedCrop(224) and flip", "big", 224, True, 1024),
        Task(
            "recipe", "torchvision's recipe for ResNet-50, to float32 of 176 x 176", "big", 176, True, 1024, recipe=True
        ),
        Task("png", "PNGs of 32 x 32, RandomResizedCrop(32) and flip", "small", 32, True, 7680),
        Task("raw-sequential", "Records of 92 KB as they are stored, in order", "big", None, False, 4096),
        Task("raw-shuffled", "Records of 92 KB as they are stored, shuffled", "big", None, True, 4096),
    )
}


class Way(Protocol):
    """A way to load images: a module in `ways`. Heavy packages are imported inside its functions."""

    NAME: str  # in the table
    PACKAGES: dict[str, str]  # modules to import before the clock starts, and the distribution that each is of
    TASKS: tuple[str, ...]  # names of tasks that it can do

    def prepare(self, images: Path, out: Path) -> None:
        """Writes the images below a folder of classes as this way reads them, to the new folder `out`."""

    def batches(self, data: Path, task: Task) -> Iterator[Any]:
        """Yields images without end, BATCH_SIZE at a time: an array of them, or a list of records.

        Args:
            data: what `prepare` wrote.
            task: what to do.
        """


def all_ways() -> dict[str, Way]:
    """Returns every way by the name of its module."""
    names = sorted(module.name for module in pkgutil.iter_modules(ways.__path__))
    return {name: load_way(name) for name in names}


def load_way(name: str) -> Way:
    """Returns the way of a module's name."""
    module: Any = importlib.import_module(f"{ways.__name__}.{name}")
    return module
