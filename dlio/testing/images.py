"""Real encoded images, the same bytes for the same arguments."""

from __future__ import annotations

import io
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from PIL import Image

Mode = Literal["L", "RGB", "RGBA", "CMYK", "I;16", "LA", "P"]


def pixels(number: int, width: int = 24, height: int = 16, channels: int = 3) -> npt.NDArray[np.uint8]:
    """Returns the pixels of image `number`, uint8 of shape (height, width, channels): smooth, so that JPEG is near."""
    rows, columns = np.mgrid[0:height, 0:width]
    planes = [(rows * (3 + number % 5) + columns * (2 + plane) + number * 31 + plane * 60) for plane in range(channels)]
    return np.stack(planes, axis=2).astype("uint8")


@lru_cache(4096)  # many tests make the same ones
def image(number: int, kind: str = "PNG", mode: Mode = "RGB", width: int = 24, height: int = 16) -> bytes:
    """Returns image `number` encoded by Pillow as `kind`: PNG, JPEG, WEBP, BMP, TIFF or PPM."""
    if mode == "I;16":
        picture = Image.fromarray(pixels(number, width, height, 1)[:, :, 0].astype("uint16") * 256)
    else:
        picture = Image.fromarray(pixels(number, width, height)).convert(mode)
    return encoded(picture, kind, **({"quality": 90} if kind == "JPEG" else {}))


def encoded(picture: Image.Image, kind: str = "JPEG", **options: Any) -> bytes:
    """Returns the file that Pillow makes of a picture."""
    out = io.BytesIO()
    picture.save(out, kind, **options)
    return out.getvalue()


def make_image_folder(root: Path, counts: dict[str, int], kind: str = "PNG", **options: Any) -> dict[str, bytes]:
    """Writes `counts[name]` images into the folder of each class, and returns the content of each file by its key."""
    content: dict[str, bytes] = {}
    for name, count in counts.items():
        (root / name).mkdir(parents=True, exist_ok=True)
        for number in range(count):
            key = f"{name}/{number:04d}.{'jpg' if kind == 'JPEG' else kind.lower()}"
            content[key] = image(len(content), kind, **options)
            (root / key).write_bytes(content[key])
    return content
