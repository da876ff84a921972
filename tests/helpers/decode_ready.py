"""Images of every kind that `--decode-ready` meets, and the records of those that have one."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dlio import native
from dlio.dataset.schema import DECODE_READY_START
from tests.helpers.images import encoded, image, photo

needs_core = pytest.mark.skipif(not native.decodes_jpeg, reason="the core's decoder of JPEGs is not installed")

#: Which become records and come back byte for byte, which come back as other bytes, and which stay unchanged.
COME_BACK = ("a/coarse.jpg", "a/even.jpg", "a/fine.jpg", "a/grey.jpg", "a/marked.jpg", "a/small.jpg", "a/turned.jpg")
PROGRESSIVE = "b/progressive.jpg"
STAY = ("b/cmyk.jpg", "b/image.png")


def turned(orientation: int) -> Image.Exif:
    """Returns EXIF that says so."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    return exif


def write_images(folder: Path) -> dict[str, bytes]:
    """Writes class folders of images of every kind; returns their bytes by key."""
    of = photo(200, 160, 1)
    found = {
        "a/coarse.jpg": encoded(of, quality=50),
        "a/even.jpg": encoded(photo(208, 160, 2), quality=90),
        "a/fine.jpg": encoded(of, quality=95, subsampling="4:4:4"),
        "a/grey.jpg": encoded(of.convert("L"), quality=90),
        "a/marked.jpg": encoded(of, quality=75, restart_marker_blocks=5, optimize=True),
        "a/small.jpg": encoded(photo(9, 7, 3)),
        "a/turned.jpg": encoded(photo(161, 99, 4), exif=turned(6), icc_profile=b"some colours"),
        PROGRESSIVE: encoded(of, progressive=True),
        "b/cmyk.jpg": encoded(of.convert("CMYK")),
        "b/image.png": image(1, "PNG"),
    }
    for key, data in found.items():
        (folder / key).parent.mkdir(parents=True, exist_ok=True)
        (folder / key).write_bytes(data)
    return found


def is_record(data: bytes) -> bool:
    """Returns whether these are the bytes of a record."""
    return data.startswith(DECODE_READY_START)


def damaged(record: bytes) -> bytes:
    """Returns a record with a flipped bit."""
    at = len(record) // 2
    return record[:at] + bytes([record[at] ^ 4]) + record[at + 1 :]


def rgb(data: bytes) -> np.ndarray:
    """Returns the pixels of a JPEG as Pillow decodes them."""
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))
