"""Writes the fuzzer's first inputs, after 16 wishes each: small JPEGs, crop-ready and decode-ready ones, cut ones.

Usage:
    python tools/fuzz/make_seeds.py SEEDS
"""

from __future__ import annotations

import random
import struct
import sys
from pathlib import Path

from PIL import Image

sys.path.insert(0, str(Path(__file__).parents[2]))  # tests/native/jpegs.py makes the pictures

from dlio.native import make_crop_ready, to_planes
from tests.helpers.images import encoded
from tests.native.jpegs import ARITHMETIC, SEPARATE_SCANS, SUBSAMPLINGS, jpeg, of_12_bits, picture

_SIZES = [(1, 1), (17, 9), (40, 33), (70, 50), (130, 40)]


def main(folder: Path) -> None:
    """Writes some 300 files into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    wishes = random.Random(0)
    pictures = [encoded(picture(40, 30).convert("CMYK")), encoded(picture(40, 30), keep_rgb=True)]
    pictures += [ARITHMETIC, SEPARATE_SCANS, of_12_bits(jpeg(40, 30)), *(_turned(order) for order in "<>")]
    for width, height in _SIZES:
        for subsampling in SUBSAMPLINGS:
            pictures.append(jpeg(width, height, subsampling, quality=60))
            pictures.append(jpeg(width, height, subsampling, quality=60, restart=2))
            pictures.append(jpeg(width, height, subsampling, quality=60, progressive=True))
            pictures.append(make_crop_ready(pictures[-3]))
            pictures.extend(record for data in pictures[-4:-2] if (record := to_planes(data)) is not None)
    pictures += [data[: len(data) * 2 // 3] for data in pictures[::3]]
    for number, data in enumerate(pictures):
        wish = struct.pack("<6h4B", *(wishes.randint(0, 40) for _ in range(6)), *wishes.randbytes(4))
        (folder / f"{number:04d}").write_bytes(wish + data)


def _turned(byte_order: str) -> bytes:
    exif = Image.Exif()
    exif.endian = byte_order
    exif[0x0112] = 6
    return encoded(picture(40, 30), exif=exif)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
