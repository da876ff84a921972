"""Decoding of images, batch-wise into memory that the caller owns; the one place that chooses who decodes.

JPEGs go to the compiled core, which decodes and resizes the box only. Everything else, and what the core does not
take (CMYK, for instance), goes to Pillow, whose `convert("RGB")` decides what grey, palette, 16 bit and transparent
images become, as in torchvision's ImageFolder. Where the core is not built, Pillow decodes JPEGs too.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps

from dlio import native, pillow
from dlio.errors import DataError
from dlio.images import Sizes, Transform
from dlio.keyed import Keys
from dlio.sample import MAX_PIXELS

#: An encoded image, or its pixels: uint8 of shape (height, width, channels) or (height, width).
Picture = bytes | npt.NDArray[np.uint8]

_ORIENTATION_TAG = 0x0112
_JPEG_START = b"\xff\xd8\xff"


def decode_rgb(picture: Picture, *, upright: bool = False) -> Image.Image:
    """Returns a whole image as Pillow's RGB; `upright` turns it as its EXIF orientation says.

    Raises:
        DataError: it cannot be decoded.
    """
    try:
        image = _open(picture)
        image.load()
        return _upright(image, upright).convert("RGB")
    except pillow.ERRORS as error:
        raise DataError(f"the image cannot be decoded: {pillow.reason(error)}") from error


def decode_batch(
    pictures: Sequence[Picture],
    transform: Transform,
    keys: Keys,
    out: npt.NDArray[np.uint8],
    *,
    upright: bool = False,
) -> dict[int, str]:
    """Decodes one window of each image into the rows of `out` and returns what went wrong, by row.

    A row that went wrong is filled with zeros. Thread-safe; most of the time is spent without Python's lock.

    Args:
        pictures: n images.
        transform: plans the windows.
        keys: a random key for each image, uint64 of shape (n,).
        out: uint8 of shape (n, 3, height, width) or (n, height, width, 3), C-contiguous.
        upright: turn images as their EXIF orientation says before anything else.
    """
    sizes, for_core, problems = _heads(pictures, upright)
    windows = transform.plan(sizes, keys)
    buffers = [picture if core else b"" for picture, core in zip(pictures, for_core, strict=True)]
    left = np.ones(len(pictures), dtype=np.bool_)
    if any(for_core):
        left = np.asarray(native.decode_batch(buffers, windows.boxes, windows.flips, out)) != 0
    rows = out.transpose(0, 2, 3, 1) if out.shape[1:] == (3, *transform.output_size) else out
    for row in np.flatnonzero(left).tolist():
        if row not in problems:
            problem = _decode_row(pictures[row], windows.boxes[row], bool(windows.flips[row]), rows[row], upright)
            if problem:
                problems[row] = problem
    for row in problems:
        out[row] = 0
    return problems


def measure(pictures: Sequence[Picture]) -> tuple[Sizes, dict[int, str]]:
    """Returns the images' heights and widths, int64 of shape (n, 2), and what is wrong with some, by row.

    Only headers are read; an image that cannot be measured counts as 1 x 1.
    """
    sizes, _, problems = _heads(pictures, upright=False)
    return sizes, problems


def _heads(pictures: Sequence[Picture], upright: bool) -> tuple[Sizes, list[bool], dict[int, str]]:
    """Returns sizes, which images the core decodes, and what is wrong with some, by row."""
    heads = [_head(picture, upright) for picture in pictures]
    problems = {row: head for row, head in enumerate(heads) if isinstance(head, str)}
    sizes = np.array([(1, 1) if isinstance(head, str) else head[:2] for head in heads], dtype=np.int64)
    return sizes.reshape(-1, 2), [not isinstance(head, str) and head[2] for head in heads], problems


def _head(picture: Picture, upright: bool) -> tuple[int, int, bool] | str:
    """Returns height, width and whether the core decodes it; or what is wrong."""
    try:
        if native.available and isinstance(picture, bytes) and picture.startswith(_JPEG_START):
            try:
                probe = native.probe(picture)
            except DataError:
                return _pillow_head(picture, upright)
            if not upright or probe.orientation == 1:
                return _too_large(probe.width, probe.height) or (probe.height, probe.width, True)
        return _pillow_head(picture, upright)
    except pillow.ERRORS as error:
        return f"the image cannot be decoded: {pillow.reason(error)}"


def _pillow_head(picture: Picture, upright: bool) -> tuple[int, int, bool] | str:
    image = _open(picture)
    width, height = image.size
    if problem := _too_large(width, height):
        return problem
    if upright and image.getexif().get(_ORIENTATION_TAG, 1) >= 5:  # those that lie on their side
        width, height = height, width
    return height, width, False


def _too_large(width: int, height: int) -> str | None:
    if width * height <= MAX_PIXELS:
        return None
    return f"the image has {width} x {height} pixels, more than {MAX_PIXELS:,}: a decompression bomb?"


def _decode_row(
    picture: Picture, box: npt.NDArray[np.int32], flip: bool, out: npt.NDArray[np.uint8], upright: bool
) -> str | None:
    """Decodes one window by Pillow into `out`, of shape (h, w, 3), and returns what went wrong, if anything."""
    left, top, width, height = box.tolist()
    try:
        image = _upright(_open(picture), upright).crop((left, top, left + width, top + height))
        image = image if image.mode == "L" else image.convert("RGB")  # grey is resized as one channel, not as three
    except pillow.ERRORS as error:
        return f"the image cannot be decoded: {pillow.reason(error)}"
    pixels = np.asarray(image.resize((out.shape[1], out.shape[0]), Image.Resampling.BILINEAR).convert("RGB"))
    out[...] = pixels[:, ::-1] if flip else pixels
    return None


def _open(picture: Picture) -> Image.Image:
    return pillow.open_image(picture) if isinstance(picture, bytes) else Image.fromarray(picture)


def _upright(image: Image.Image, upright: bool) -> Image.Image:
    return ImageOps.exif_transpose(image) if upright else image
