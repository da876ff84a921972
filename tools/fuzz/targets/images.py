"""Encoded images, as they are packed, verified and loaded: the compiled core's and Pillow's."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from dlio.codecs.decode_ready import restored
from dlio.codecs.decoders import decode_batch, decode_rgb
from dlio.images import CenterCrop, RandomResizedCrop
from dlio.native import make_crop_ready, to_planes
from dlio.pack.inspect.image_header import decode_image, inspect_image
from tests.helpers.images import encoded, image
from tests.native.jpegs import ARITHMETIC, SEPARATE_SCANS, SUBSAMPLINGS, jpeg, of_12_bits, picture
from tools.fuzz.inputs import Files
from tools.fuzz.targets import Target, require

_NAME = "image"
_TRANSFORMS = (CenterCrop(8), RandomResizedCrop((7, 12), flip=True))


def check(root: Path, files: Files) -> None:
    """A verified image can be loaded, any other is refused, and every decoder reports the same size."""
    data = files[_NAME]
    info = inspect_image(data)
    for upright in (False, True):
        for transform in _TRANSFORMS:
            out = np.empty((1, 3, *transform.output_size), np.uint8)
            problems = decode_batch([data], transform, np.array([7], np.uint64), out, upright=upright)
            require(all(problems.values()), "a problem has words")
    decode_image(data)
    whole = decode_rgb(data)
    require(whole.size == (info.width, info.height), "an image has the size that its head tells")
    require(decode_rgb(restored(data)) == whole, "a decode-ready record has the pixels of the JPEG that leaves dlio")
    out = np.empty((1, 3, *_TRANSFORMS[0].output_size), np.uint8)
    problems = decode_batch([data], _TRANSFORMS[0], np.array([7], np.uint64), out)
    require(not problems, f"what is verified is loaded ({problems})")


def seeds() -> list[Files]:
    """Returns small images of every kind."""
    made = [jpeg(40, 33, subsampling, quality=60) for subsampling in SUBSAMPLINGS]
    made += [jpeg(40, 33, progressive=True), make_crop_ready(jpeg(80, 40)), ARITHMETIC, SEPARATE_SCANS]
    made += [of_12_bits(jpeg(40, 33))]
    made += [record for data in made if (record := to_planes(data)) is not None]
    made += [image(1, "PNG", mode) for mode in ("L", "RGB", "RGBA", "P", "LA", "I;16")]
    made += [image(1, kind) for kind in ("WEBP", "BMP", "TIFF", "PPM", "GIF")] + [image(1, "JPEG", "CMYK")]
    exif = picture(20, 10).getexif()
    exif[0x0112] = 6
    made.append(encoded(picture(20, 10), exif=exif))
    return [{_NAME: data} for data in made]


TARGETS = [Target("image", seeds, check)]
