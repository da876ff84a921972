"""Decoding of images, batch-wise into memory that the caller owns; the one place that chooses who decodes.

JPEGs go to the compiled core, which decodes and resizes the box only, plain PNGs to OpenCV. Everything else, and what
these leave to it (CMYK, for instance), goes to Pillow, whose `convert("RGB")` decides what grey, palette, 16 bit and
transparent images become, as in torchvision's ImageFolder. Where there is no core, or no OpenCV, Pillow stands in.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TypeVar

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps

from dlio import jpeg, native, pillow, png
from dlio.errors import DataError, UsageError
from dlio.images import Sizes, Transform, Windows
from dlio.keyed import Keys
from dlio.sample import MAX_PIXELS

#: An encoded image, bytes-like or uint8 of shape (bytes,), or pixels: uint8 (height, width, channels), (height, width).
Picture = bytes | bytearray | memoryview | npt.NDArray[np.uint8]
_Readable = bytes | memoryview | npt.NDArray[np.uint8]  # in which an encoded image is one of the first two
Number = TypeVar("Number", int, float)

_ORIENTATION_TAG = 0x0112
_SMALL_BYTES = 8192


def decode_rgb(picture: Picture, *, upright: bool = False) -> Image.Image:
    """Returns a whole image as Pillow's RGB; `upright` turns it as its EXIF orientation says.

    Raises:
        DataError: it cannot be decoded.
        TypeError: it is not bytes-like.
    """
    readable = _readable(picture)
    try:
        return _whole(readable, upright).convert("RGB")
    except pillow.ERRORS as error:
        raise DataError(_problem(error)) from error


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
        pictures: n images, whose bytes nobody changes meanwhile; a bytearray cannot be resized as long.
        transform: plans the windows.
        keys: a random key for each image, uint64 of shape (n,).
        out: uint8 of shape (n, 3, height, width) or (n, height, width, 3), C-contiguous.
        upright: turn images as their EXIF orientation says before anything else.

    Raises:
        UsageError: another shape, or 3 x 3 pixels, for which both are the same.
        TypeError: an image is not bytes-like.
    """
    readable = [_readable(picture) for picture in pictures]
    rows = _channels_last(out, transform.output_size)
    sizes, for_core, problems = _heads(readable, upright)
    windows = transform.plan(sizes, keys)
    statuses = np.full(len(pictures), jpeg.LEFT_TO_PILLOW)
    if for_core.any():
        buffers = [picture if core else b"" for picture, core in zip(readable, for_core, strict=True)]
        statuses[for_core] = _decode_by_core(buffers, windows, rows)[for_core]
    for row in np.flatnonzero((statuses != 0) & (statuses != jpeg.LEFT_TO_PILLOW)).tolist():
        problems.setdefault(row, _problem(jpeg.problem(int(statuses[row]))))
    left = [row for row in np.flatnonzero(statuses == jpeg.LEFT_TO_PILLOW).tolist() if row not in problems]
    with _turn(readable, left):
        for row in left:
            if problem := _decode_row(readable[row], windows, row, rows[row], upright):
                problems[row] = problem
    for row in problems:
        out[row] = 0
    return problems


def _readable(picture: Picture) -> _Readable:
    """Returns bytes and pixels as they are, any other encoded image as a view of its bytes; raises TypeError."""
    if isinstance(picture, bytes) or (isinstance(picture, np.ndarray) and picture.ndim > 1):
        return picture
    return memoryview(picture).cast("B")  # type: ignore[arg-type]  # numpy tells it from Python 3.12 on


def _turn(pictures: Sequence[_Readable], rows: list[int]) -> AbstractContextManager[object]:
    """Returns what lets one thread at a time decode images that are small: they are mostly Python's work.

    Two threads that hand Python's lock to and fro several times an image take 136 us of CPU for a PNG of 32 x 32, in
    turns 82, and do 1.2 times as many a second.
    """
    sizes = [len(data) if isinstance(data := pictures[row], bytes) else data.nbytes for row in rows]
    return _small_images if sum(sizes) < _SMALL_BYTES * len(rows) else nullcontext()


def _renew_turn() -> None:
    """Gives a forked child a lock that no thread of its parent holds."""
    global _small_images
    _small_images = threading.Lock()


_small_images = threading.Lock()
os.register_at_fork(after_in_child=_renew_turn)


def measure(pictures: Sequence[Picture]) -> tuple[Sizes, dict[int, str]]:
    """Returns the images' heights and widths, int64 of shape (n, 2), and what is wrong with some, by row.

    Only headers are read; an image that cannot be measured counts as 1 x 1.
    """
    sizes, _, problems = _heads([_readable(picture) for picture in pictures], upright=False)
    return sizes, problems


def _heads(pictures: Sequence[_Readable], upright: bool) -> tuple[Sizes, npt.NDArray[np.bool_], dict[int, str]]:
    """Returns sizes, which images the core decodes, and what is wrong with some, by row."""
    sizes = jpeg.measure(pictures)
    if upright:
        sizes[[jpeg.is_for_core(picture) and _may_be_turned(picture) for picture in pictures]] = 0
    for_core = sizes[:, 0] > 0
    problems = {}
    for row in np.flatnonzero(~for_core).tolist():
        try:
            sizes[row] = _size(pictures[row], upright)
        except pillow.ERRORS as error:
            sizes[row], problems[row] = 1, _problem(error)
        height, width = sizes[row].tolist()
        if width * height > MAX_PIXELS:
            problems[row] = f"the image has {width} x {height} pixels, more than {MAX_PIXELS:,}: a decompression bomb?"
            sizes[row] = 1
    return sizes, for_core, problems


def _size(picture: _Readable, upright: bool) -> tuple[int, int]:
    """Returns height and width of an image that the core does not decode; raises one of `pillow.ERRORS`."""
    if not upright and (size := png.measure(picture)):
        return size
    jpeg.probe(picture)  # tells what is wrong with a JPEG
    image = _open(picture)
    if upright and image.width * image.height <= MAX_PIXELS and image.getexif().get(_ORIENTATION_TAG, 1) != 1:
        image = _whole(picture, upright)  # only Pillow knows what it makes of odd orientations and of TIFF's
    return image.height, image.width


def _may_be_turned(picture: bytes | memoryview) -> bool:
    """Tells whether a JPEG may have an orientation, in EXIF or XMP: Pillow looks more closely."""
    data = bytes(picture)
    return b"Exif\0" in data or b"tiff:Orientation" in data


def _channels_last(out: npt.NDArray[np.uint8], size: tuple[int, int]) -> npt.NDArray[np.uint8]:
    """Returns a view of shape (n, height, width, 3) of images of either layout; raises UsageError."""
    first, last = out.shape[1:] == (3, *size), out.shape[1:] == (*size, 3)
    if first == last:
        height, width = size
        shapes = f"(n, 3, {height}, {width}) or (n, {height}, {width}, 3)"
        raise UsageError(f"images of {height} x {width} pixels: expected an array {shapes}, found {out.shape}")
    return out.transpose(0, 2, 3, 1) if first else out


def _decode_by_core(pictures: list[_Readable], windows: Windows, rows: npt.NDArray[np.uint8]) -> npt.NDArray[np.int32]:
    """Decodes into `rows`, of shape (n, height, width, 3) in memory of either layout, and returns the statuses."""
    if rows.flags.c_contiguous:
        out = rows
    elif rows.shape[2] != 3:
        out = rows.transpose(0, 3, 1, 2)
    else:  # the core would take (n, 3, height, 3) for (n, height, width, 3)
        out = np.zeros(rows.shape, np.uint8)
        statuses = _decode_by_core(pictures, windows, out)
        rows[...] = out
        return statuses
    if windows.parts is None:
        return native.decode_batch(pictures, windows.boxes, windows.flips, out)
    return native.decode_parts(pictures, windows.boxes, windows.parts, windows.flips, out)


def _decode_row(
    picture: _Readable, windows: Windows, row: int, out: npt.NDArray[np.uint8], upright: bool
) -> str | None:
    """Decodes one window whole into `out`, of shape (h, w, 3), and returns what went wrong, if anything."""
    box = _corners(*windows.boxes[row].tolist())
    part = None if windows.parts is None else _corners(*windows.parts[row].tolist())
    blue_first = None if upright else png.decode(picture)
    try:
        image = _whole(picture, upright) if blue_first is None else Image.fromarray(blue_first)
        image = image.crop(box)
        image = image if image.mode in ("L", "RGB") else image.convert("RGB")  # grey is resized as one channel
    except pillow.ERRORS as error:
        return _problem(error)
    if part is not None or image.size != (out.shape[1], out.shape[0]):
        image = image.resize((out.shape[1], out.shape[0]), Image.Resampling.BILINEAR, part)
    pixels = np.asarray(image if image.mode == "RGB" else image.convert("RGB"))
    pixels = pixels if blue_first is None else pixels[:, :, ::-1]
    out[...] = pixels[:, ::-1] if windows.flips[row] else pixels
    return None


def _corners(left: Number, top: Number, width: Number, height: Number) -> tuple[Number, Number, Number, Number]:
    return left, top, left + width, top + height


def _whole(picture: _Readable, upright: bool) -> Image.Image:
    """Returns a decoded image, turned if it is to stand `upright`; raises one of `pillow.ERRORS`."""
    pixels = jpeg.decode(picture)
    if pixels is None:
        image = _open(picture)
        image.load()
    else:
        image = Image.fromarray(pixels)
        if upright:
            image.info.update(_open(picture).info)  # where exif_transpose looks
    return ImageOps.exif_transpose(image) if upright else image


def _open(picture: _Readable) -> Image.Image:
    return Image.fromarray(picture) if isinstance(picture, np.ndarray) else pillow.open_image(picture)


def _problem(error: BaseException) -> str:
    return f"the image cannot be decoded: {pillow.reason(error)}"
