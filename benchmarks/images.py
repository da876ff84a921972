"""The images that the benchmarks read: made from photographs that installed packages ship, always the same ones.

Two sets, a folder for each class: `big`, 6,000 JPEGs of about 500 x 375 (600 different ones, each file with a comment
of its own, so that no tool leaves equal files out; 85% 4:2:0, 92 KB on average), as ImageNet's are, and `small`, 20,000
PNGs of 32 x 32, as CIFAR's.
"""

from __future__ import annotations

import importlib.util
import io
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

SETS = {"big": (6000, 20), "small": (20_000, 10)}  # images, classes
NUM_DIFFERENT = 600
PHOTOS = {
    "sklearn": ["datasets/images/china.jpg", "datasets/images/flower.jpg"],
    "skimage": [
        f"data/{name}" for name in ("astronaut.png", "chelsea.png", "coffee.png", "motorcycle_left.png", "rocket.jpg")
    ],
}
SHAPES = [(500, 375)] * 5 + [(375, 500), (500, 333), (500, 400)]  # about ImageNet's


def find_photos() -> list[Path]:
    """Returns photographs that installed packages ship.

    Raises:
        SystemExit: there are none.
    """
    found = []
    for package, names in PHOTOS.items():
        spec = importlib.util.find_spec(package)
        if spec and spec.origin:
            found += [Path(spec.origin).parent / name for name in names]
    photos = [path for path in found if path.exists()]
    if not photos:
        raise SystemExit("no photographs to make images from: pip install scikit-learn scikit-image")
    return photos


def make_images(photos: Sequence[Path], count: int) -> list[bytes]:
    """Returns `count` JPEGs: crops of the photographs at many scales, mirrored at random."""
    random = np.random.default_rng(0)
    originals = [Image.open(path).convert("RGB") for path in photos]
    return [_jpeg(originals[number % len(originals)], random) for number in range(count)]


def _jpeg(original: Image.Image, random: np.random.Generator) -> bytes:
    width, height = SHAPES[random.integers(len(SHAPES))]
    scale = min(original.width / width, original.height / height) * random.uniform(0.7, 1)
    left = random.uniform(0, original.width - width * scale)
    top = random.uniform(0, original.height - height * scale)
    box = (left, top, left + width * scale, top + height * scale)
    image = original.resize((width, height), Image.Resampling.BICUBIC, box)
    if random.random() < 0.5:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    out = io.BytesIO()
    subsampling = "4:2:0" if random.random() < 0.85 else "4:4:4"
    image.save(out, "JPEG", quality=int(random.integers(96, 99)), subsampling=subsampling)
    return out.getvalue()


def _png(number: int) -> bytes:
    random = np.random.default_rng(number)
    noise = random.integers(0, 24, (32, 32, 3)) + np.add.outer(np.arange(32), np.arange(32))[:, :, None] * 3
    out = io.BytesIO()
    Image.fromarray(noise.astype("uint8")).save(out, "PNG")
    return out.getvalue()


def make_set(data: Path, name: str) -> Path:
    """Returns the folder of a set, made if it is not there: `all` holds its classes, `part` a twelfth of them."""
    count, classes = SETS[name]
    root = data / name
    if (root / "complete").exists():
        return root
    shutil.rmtree(root, ignore_errors=True)
    is_big = name == "big"
    encoded = make_images(find_photos(), NUM_DIFFERENT) if is_big else [_png(number) for number in range(count)]
    for number in range(count):
        path = root / "all" / f"class{number % classes:02d}" / f"{number:06d}.{'jpg' if is_big else 'png'}"
        path.parent.mkdir(parents=True, exist_ok=True)
        data = encoded[number % len(encoded)]
        path.write_bytes(data[:2] + b"\xff\xfe\x00\x0a%08d" % number + data[2:] if is_big else data)
        if number % 12 == 0:
            part = root / "part" / path.relative_to(root / "all")
            part.parent.mkdir(parents=True, exist_ok=True)
            os.link(path, part)
    (root / "complete").touch()
    return root
