"""Decodes batches of images into the caller's memory, and chooses the decoder of each.

The compiled core decodes JPEGs, reading and resizing only the box, and plain PNGs. Pillow decodes all others,
those that the core refuses (CMYK, for instance), and all if the core is missing. Its `convert("RGB")` converts grey,
palette and transparent images, as in torchvision's ImageFolder, but grey images of 16 bits are scaled to 8 first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import TypeVar

import numpy as np
import numpy.typing as npt
from PIL import Image

from dlio import native
from dlio.codecs import jpeg, pictures, pillow
from dlio.codecs.orientation import turn_image, turned_size
from dlio.codecs.pictures import Picture, Readable
from dlio.dataset.schema import Array
from dlio.errors import DataError, UsageError
from dlio.images import Sizes, Transform, Windows
from dlio.images.composed import apply_effects
from dlio.images.padded import Colour
from dlio.locking.fork_lock import ForkLock
from dlio.random_keys import Keys

Number = TypeVar("Number", int, float)
Statuses = npt.NDArray[np.int32]
#: Returns a whole image, decoded; raises one of `pillow.ERRORS`.
Whole = Callable[[Readable], Image.Image]

_RESAMPLING = {
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "nearest": Image.Resampling.NEAREST,
}
_FILTERS = {"bilinear": 0, "bicubic": 1, "nearest": 2}  # the core's numbers
_SMALL_BYTES = 8192
_MASK_MODES = ("1", "L", "P", "I", "I;16")
_NO_PIXELS = np.empty((0, 0, 3), np.uint8)


def decode_rgb(picture: Picture, *, upright: bool = False) -> Image.Image:
    """Returns a whole image as Pillow's RGB; `upright` turns it as its EXIF orientation says.

    Raises:
        DataError: it cannot be decoded.
        TypeError: it is not bytes-like.
    """
    readable = pictures.readable(picture)
    try:
        return pictures.whole(readable, upright=upright).convert("RGB")
    except pillow.ERRORS as error:
        raise DataError(pictures.problem(error)) from error


def decode_batch(
    images: Sequence[Picture],
    transform: Transform,
    keys: Keys,
    out: npt.NDArray[np.uint8],
    *,
    upright: bool = False,
) -> dict[int, str]:
    """Decodes one window of each image into the rows of `out`; returns the problems, whose rows are zeros.

    Thread-safe; most of the time is spent without Python's lock.

    Args:
        images: n images, whose bytes must not change during the call; a bytearray cannot be resized.
        transform: plans the windows; its effects follow.
        keys: a random key for each image, uint64 of shape (n,).
        out: uint8 of shape (n, 3, height, width) or (n, height, width, 3), C-contiguous.
        upright: turn images as their EXIF orientation says before anything else.

    Raises:
        UsageError: another shape, or 3 x 3 pixels, for which both are the same.
        TypeError: an image is not bytes-like.
    """
    readable = pictures.all_readable(images)
    rows = channels_last(out, transform.output_size)
    in_one_array = pictures.heads_of_pixels(images)
    heads = in_one_array or pictures.read_heads(readable, upright=upright)
    windows = transform.plan(heads.sizes, keys)
    if windows.places is not None:
        _fill(out, rows, windows.fill)
    statuses = np.full(len(readable), native.LEFT_TO_PILLOW, np.int32)
    if heads.for_core.any():
        buffers = [image if core else b"" for image, core in zip(readable, heads.for_core, strict=True)]
        statuses[heads.for_core] = _write(native.decode_batch, buffers, windows, rows)[heads.for_core]
    if in_one_array and native.available:
        statuses = _write(native.resize_batch, images, windows, rows)
    elif heads.plain and native.available:
        _resize_plain(readable, heads.plain, windows, rows, statuses)
    problems = heads.problems
    for row in np.flatnonzero((statuses != 0) & (statuses != native.LEFT_TO_PILLOW)).tolist():
        problems.setdefault(row, pictures.problem(jpeg.error_of(int(statuses[row]))))
    left = [row for row in np.flatnonzero(statuses == native.LEFT_TO_PILLOW).tolist() if row not in problems]
    whole = partial(pictures.whole, upright=upright, white=getattr(transform, "white", None))
    problems |= _decode_by_pillow(readable, left, windows, rows, whole)
    apply_effects(transform, rows, keys)
    for row in problems:
        out[row] = 0
    return problems


def _decode_by_pillow(
    images: Sequence[Readable], left: list[int], windows: Windows, out: npt.NDArray[np.uint8], whole: Whole
) -> dict[int, str]:
    with _turn(images, left):
        found = {row: _decode_row(images[row], windows, row, out[row], whole) for row in left}
    return {row: problem for row, problem in found.items() if problem}


def _turn(images: Sequence[Readable], rows: list[int]) -> AbstractContextManager[object]:
    """Returns a lock if the images are small, so that one thread at a time decodes them: they are mostly Python's work.

    Two threads that exchange Python's lock several times an image take 136 us of CPU for a PNG of 32 x 32. In turns
    they take 82 us, and decode 1.2 times as many a second.
    """
    sizes = [len(data) if isinstance(data := images[row], bytes) else data.nbytes for row in rows]
    return _small_images if sum(sizes) < _SMALL_BYTES * len(rows) else nullcontext()


_small_images = ForkLock()


def decode_mask(
    picture: Picture, size: Sizes, windows: Windows, row: int, output_size: tuple[int, int], orientation: int = 1
) -> npt.NDArray[np.int32]:
    """Returns the window of a mask by nearest pixels, int32 of shape (height, width).

    Pixels outside the window's place are 0.

    Args:
        picture: the mask, one channel or a palette.
        size: height and width of its image.
        windows: the windows of a batch.
        row: the image's row in the batch.
        output_size: height and width of the result.
        orientation: how the image was turned to have this size; a mask of the size before is turned as well.

    Raises:
        DataError: it cannot be decoded, has several channels, or another size than its image.
    """
    try:
        image = pillow.open_image(bytes(pictures.readable(picture)))
        image.load()
    except pillow.ERRORS as error:
        raise DataError(pictures.problem(error)) from error
    height, width = size.tolist()
    if image.size == turned_size((width, height), orientation):
        image = turn_image(image, orientation)
    if image.mode not in _MASK_MODES or image.size != (width, height):
        found = f"{image.mode} of {image.width} x {image.height} pixels"
        raise DataError(f"expected a mask with one channel and its image's {width} x {height} pixels, found {found}")
    box = _corners(*windows.boxes[row].tolist())
    part = None if windows.parts is None else _corners(*windows.parts[row].tolist())
    result = np.zeros(output_size, np.int32)
    if (out := _placed(result, windows, row)).size:
        image = image.crop(box).resize(out.shape[::-1], Image.Resampling.NEAREST, part)
        out[...] = np.asarray(image)[:, :: -1 if windows.flips[row] else 1]
    for move in () if windows.moves is None else windows.moves[row]:
        image = Image.fromarray(result).transform(output_size[::-1], Image.Transform.AFFINE, move)
        result = np.array(image, np.int32)
    return result


def measure(images: Sequence[Picture], *, upright: bool = False) -> tuple[Sizes, dict[int, str]]:
    """Returns the images' heights and widths, int64 of shape (n, 2), and the problems, by row.

    Only headers are read; an image that cannot be measured counts as 1 x 1.
    """
    heads = pictures.read_heads([pictures.readable(image) for image in images], upright=upright)
    return heads.sizes, heads.problems


def channels_last(out: npt.NDArray[np.uint8], size: tuple[int, int]) -> npt.NDArray[np.uint8]:
    """Returns a view of shape (n, height, width, 3) of images of either layout; raises UsageError."""
    first, last = out.shape[1:] == (3, *size), out.shape[1:] == (*size, 3)
    if first == last:
        height, width = size
        shapes = f"(n, 3, {height}, {width}) or (n, {height}, {width}, 3)"
        raise UsageError(f"images of {height} x {width} pixels: expected an array {shapes}, found {out.shape}")
    return out.transpose(0, 2, 3, 1) if first else out


def _fill(out: npt.NDArray[np.uint8], rows: npt.NDArray[np.uint8], fill: Colour) -> None:
    """Fills images with a colour; `rows` are those of `out`, with the channels last."""
    if isinstance(fill, tuple):
        rows[...] = fill
    else:
        out.fill(fill)  # in the order of memory


def _resize_plain(
    images: Sequence[Readable], plain: list[int], windows: Windows, rows: npt.NDArray[np.uint8], statuses: Statuses
) -> None:
    """Resizes the windows of plain images into their rows, and sets their statuses."""
    pixels = [_NO_PIXELS] * len(images)
    for row in plain:
        if (found := pictures.plain_pixels(images[row])) is not None:
            pixels[row] = found
    decoded = np.array([one is not _NO_PIXELS for one in pixels])
    statuses[decoded] = _write(native.resize_batch, pixels, windows, rows)[decoded]


def _write(
    function: Callable[..., Statuses], images: Sequence[object], windows: Windows, rows: npt.NDArray[np.uint8]
) -> Statuses:
    """Calls a function of the core for `rows`, of shape (n, height, width, 3) in memory of either layout."""
    if rows.flags.c_contiguous:
        out = rows
    elif rows.shape[2] != 3:
        out = rows.transpose(0, 3, 1, 2)
    else:  # the core would take (n, 3, height, 3) for (n, height, width, 3)
        out = rows.copy()
        statuses = _write(function, images, windows, out)
        rows[...] = out
        return statuses
    number = _FILTERS[windows.interpolation]
    return function(images, windows.boxes, windows.flips, out, windows.parts, windows.places, number)


def _decode_row(picture: Readable, windows: Windows, row: int, out: npt.NDArray[np.uint8], whole: Whole) -> str | None:
    """Decodes one window whole into `out`, of shape (h, w, 3), and returns the problem, None if there is none."""
    box = _corners(*windows.boxes[row].tolist())
    part = None if windows.parts is None else _corners(*windows.parts[row].tolist())
    out = _placed(out, windows, row)
    if not out.size:
        return None
    try:
        image = whole(picture).crop(box)
        image = image if image.mode in ("L", "RGB") else image.convert("RGB")  # grey is resized as one channel
    except pillow.ERRORS as error:
        return pictures.problem(error)
    if part is not None or image.size != (out.shape[1], out.shape[0]):
        image = image.resize((out.shape[1], out.shape[0]), _RESAMPLING[windows.interpolation], part)
    pixels = np.asarray(image if image.mode == "RGB" else image.convert("RGB"))
    out[...] = pixels[:, ::-1] if windows.flips[row] else pixels
    return None


def _placed(out: Array, windows: Windows, row: int) -> Array:
    """Returns the part of an image's result, (height, width, ...), where its window goes."""
    if windows.places is None:
        return out
    left, top, width, height = windows.places[row].tolist()
    return out[top : top + height, left : left + width]


def _corners(left: Number, top: Number, width: Number, height: Number) -> tuple[Number, Number, Number, Number]:
    return left, top, left + width, top + height
