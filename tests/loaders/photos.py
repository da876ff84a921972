"""Photos that encode their numbers, and loaders of them."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from dlio.dataset.manifest import Manifest
from dlio.images import Resize
from dlio.loaders.batch_sources import ArrayBatches
from dlio.loaders.dataset import PackedSamples
from dlio.loaders.loader import Loader
from dlio.loaders.sampling.rank_share import End
from tests.helpers.images import encoded

NUM_PHOTOS = 41  # a prime, so that nothing divides evenly
CLASS_NAMES = ("ant", "bee", "cat")


def write_photos(folder: Path, count: int = NUM_PHOTOS, kind: str = "PNG") -> None:
    """Writes photos into class folders; the first pixel of each encodes its number, wherever it ends up."""
    for number in range(count):
        name = CLASS_NAMES[number * len(CLASS_NAMES) // count]
        pixels = np.random.default_rng(number).integers(0, 255, (20 + number % 5, 24, 3), dtype=np.uint8)
        pixels[:4, :4] = number
        (folder / name).mkdir(parents=True, exist_ok=True)
        (folder / name / f"{number:03}.{kind.lower()}").write_bytes(encoded(Image.fromarray(pixels), kind))


def numbers(batches: Iterable[Any]) -> list[int]:
    """Returns which photo each image was made of; a batch is a mapping with `image`, or has its images first."""
    images = (batch["image"] if isinstance(batch, dict) else batch[0] for batch in batches)
    return [int(number) for each in images for number in np.asarray(each)[:, 0, 0, 0]]


def dlio_threads() -> list[str]:
    """Returns the names of dlio's own threads, where a framework keeps others."""
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("dlio")]


def loader_of(
    packed: Manifest, batch_size: int = 4, rank: int = 0, world_size: int = 1, num_workers: int = 2, **options: Any
) -> Loader:
    """Returns a loader of the photos, 16 pixels high and wide, in whole batches unless `end` says more."""
    options = {"end": End.DROP} | options
    source = ArrayBatches(PackedSamples(packed, Resize(16)), mask=options["end"] is End.MASK)
    return Loader(source, batch_size, rank_and_size=lambda: (rank, world_size), num_workers=num_workers, **options)
