"""Packs images, verifies and loads them: main_job.py FOLDER core, or main_job.py FOLDER pillow.

The first run leaves FOLDER/batches.npy, which all others have to equal: to the bit by the core, whatever the processor
and the Python; without the core a pixel may differ by 1 of 255, since Pillow resizes rows and columns in another order.
"""

from __future__ import annotations

import platform
import sys
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image

import dlio
from dlio import cli, native
from dlio.images import RandomResizedCrop
from dlio.loaders.dataset import PackedSamples
from dlio.loaders.loader import ArrayBatches, Loader


def draw(folder: Path) -> None:
    numbers = np.random.default_rng(0)
    for number in range(24):
        path = folder / "ab"[number % 2] / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        coarse = numbers.integers(0, 256, (8, 8, 3), np.uint8)
        Image.fromarray(coarse).resize((97 + number, 130)).save(path, quality=90)


def load(packed: Path) -> np.ndarray:
    """Returns the images of an epoch, each with its label as a last row, uint8 (24, 65, 64, 3)."""
    source = ArrayBatches(PackedSamples(packed, RandomResizedCrop(64, flip=True)), channels_last=True)
    batches = list(Loader(source, 8, shuffle=True, seed=0))
    images, labels = (np.concatenate([batch[name] for batch in batches]) for name in ("image", "label"))
    rows = np.broadcast_to(labels[:, None, None, None].astype(np.uint8) * 2, (len(images), 1, 64, 3))
    return np.concatenate([images, rows], axis=1)


def main(folder: Path, decoder: str) -> int:
    if decoder != ("core" if native.decodes_jpeg else "pillow"):
        raise SystemExit(str(native.missing(f"main_job.py {decoder}")))
    work = Path(tempfile.mkdtemp(dir=folder))
    draw(work / "photos")
    packed = str(work / "packed")
    pack = ["pack", str(work / "photos"), packed, "--format", "recordio", "--quiet"]
    if code := cli.main(pack) or cli.main(["verify", packed, "--decode", "--quiet"]):
        return code
    images, first = load(Path(packed)), folder / "batches.npy"
    if not first.exists():
        np.save(first, images)
    furthest = int(np.abs(images.astype(int) - np.load(first)).max())
    machine = f"{platform.machine()}, Python {platform.python_version()}"
    print(f"dlio {dlio.__version__}, {machine}, by {decoder}: pixels differ by {furthest} of 255")
    return int(furthest > (decoder == "pillow"))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2]))
