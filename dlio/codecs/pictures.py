"""Pictures, encoded or not: the decoder of each, its size, and the whole picture as Pillow decodes it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps

from dlio.codecs import jpeg, pillow, png
from dlio.codecs.orientation import AS_STORED, TAG, may_be_turned
from dlio.dataset.schema import MAX_PIXELS
from dlio.images import WHITE, Sizes

#: An encoded image, bytes-like or uint8 of shape (bytes,), or pixels: uint8 (height, width, channels), (height, width).
Picture = bytes | bytearray | memoryview | npt.NDArray[np.uint8]
#: The same, where an encoded image is bytes or a view of bytes.
Readable = bytes | memoryview | npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True, eq=False)
class Heads:
    """The heads of n images.

    Attributes:
        sizes: height and width, int64 of shape (n, 2); 1 x 1 of one that cannot be decoded.
        for_core: whether the core decodes it, bool of shape (n,).
        plain: the rows of pixels and of plain PNGs.
        problems: the images that cannot be decoded, by row.
    """

    sizes: Sizes
    for_core: npt.NDArray[np.bool_]
    plain: list[int]
    problems: dict[int, str]


def readable(picture: Picture) -> Readable:
    """Returns bytes and pixels unchanged, any other encoded image as a view of its bytes.

    Raises:
        TypeError: it is neither pixels nor bytes-like.
    """
    if isinstance(picture, bytes) or (isinstance(picture, np.ndarray) and picture.ndim > 1):
        return picture
    if isinstance(picture, memoryview) and picture.format == "B" and picture.ndim == 1 and picture.c_contiguous:
        return picture
    return memoryview(picture).cast("B")  # type: ignore[arg-type]  # numpy's types allow it from Python 3.12 on


def all_readable(pictures: Sequence[Picture]) -> Sequence[Readable]:
    """Returns `readable` of each."""
    if isinstance(pictures, np.ndarray) and pictures.ndim > 2:
        return pictures
    return [readable(picture) for picture in pictures]


def read_heads(pictures: Sequence[Readable], *, upright: bool) -> Heads:
    """Returns the heads, sizes as after turning if `upright`; decodes no image."""
    sizes = jpeg.measure(pictures)
    if upright:
        sizes[[jpeg.is_for_core(picture) and may_be_turned(picture) for picture in pictures]] = 0
    heads = Heads(sizes, sizes[:, 0] > 0, [], {})
    for row in np.flatnonzero(~heads.for_core).tolist():
        plain_size = _plain_size(pictures[row], upright)
        try:
            sizes[row] = _bounded(plain_size or _size(pictures[row], upright))
        except pillow.ERRORS as error:
            sizes[row], heads.problems[row] = 1, problem(error)
        else:
            if plain_size:
                heads.plain.append(row)
    return heads


def heads_of_pixels(pictures: object) -> Heads | None:
    """Returns the heads of pixels in one array, uint8 of shape (n, height, width, 3), contiguous; None of others."""
    if not (isinstance(pictures, np.ndarray) and pictures.ndim == 4 and len(pictures) and pictures.flags.c_contiguous):
        return None
    size, n = _plain_size(pictures[0], upright=False), len(pictures)
    if size is None or size[0] * size[1] > MAX_PIXELS:
        return None
    return Heads(np.full((n, 2), size, np.int64), np.zeros(n, np.bool_), list(range(n)), {})


def _bounded(size: tuple[int, int]) -> tuple[int, int]:
    """Returns the size; raises Pillow's error where these are more than MAX_PIXELS."""
    height, width = size
    if width * height > MAX_PIXELS:
        bomb = f"the image has {width} x {height} pixels, more than {MAX_PIXELS:,}: a decompression bomb?"
        raise Image.DecompressionBombError(bomb)
    return size


def _plain_size(picture: Readable, upright: bool) -> tuple[int, int] | None:
    """Returns height and width of pixels in three channels, and of plain PNGs; None for anything else."""
    if isinstance(picture, np.ndarray):
        plain = picture.dtype == np.uint8 and picture.shape[2:] == (3,) and picture.flags.c_contiguous and picture.size
        return (picture.shape[0], picture.shape[1]) if plain else None
    return None if upright else png.measure(picture)


def _size(picture: Readable, upright: bool) -> tuple[int, int]:
    """Returns height and width of an image that Pillow decodes; raises one of `pillow.ERRORS`."""
    jpeg.probe(picture)  # raises if a JPEG is damaged
    image = open_image(picture)
    if upright and image.width * image.height <= MAX_PIXELS and image.getexif().get(TAG, AS_STORED) != AS_STORED:
        image = whole(picture, upright=True)  # only Pillow knows what it makes of odd orientations and of TIFF's
    return image.height, image.width


def plain_pixels(picture: Readable) -> npt.NDArray[np.uint8] | None:
    """Returns the pixels of one that is `plain`, uint8 (height, width, 3), RGB; None if Pillow must decode it."""
    return picture if isinstance(picture, np.ndarray) else png.decode(picture)


def whole(picture: Readable, *, upright: bool, white: int | None = None) -> Image.Image:
    """Returns a decoded image of 8 bits a channel, turned if `upright`; raises one of `pillow.ERRORS`.

    The values of grey images of more bits are scaled linearly from 0 to `white`, by default WHITE for those of 16 bits.
    """
    pixels = jpeg.decode(picture)
    if pixels is None:
        image = open_image(picture)
        image.load()
        image = (
            _scaled(image, _white(image) if white is None else white) if image.mode.startswith(("I", "F")) else image
        )
    else:
        image = Image.fromarray(pixels)
        if upright:
            image.info.update(open_image(picture).info)  # where exif_transpose looks
    return ImageOps.exif_transpose(image) if upright else image


def _white(image: Image.Image) -> int:
    """Returns the white of grey values of 16 bits; raises ValueError for others, whose formats define none."""
    if image.mode.startswith("I;16") or (image.mode == "I" and image.format in ("PNG", "PPM")):
        return WHITE
    raise ValueError("grey values of 32 bits or floats: give the transform white=, the value that becomes 255")


def _scaled(image: Image.Image, white: int) -> Image.Image:
    """Returns a grey image with 0 to `white` scaled to 0 to 255; Pillow's `convert` would clip at 255.

    Raises:
        ValueError: a value is outside.
    """
    values = np.asarray(image)
    low, high = values.min(), values.max()
    if not (low >= 0 and high <= white):
        raise ValueError(f"grey values from {low} to {high}: expected 0 to {white}; see `white` of the transform")
    scaled = Image.fromarray(np.rint(values * (255 / white)).astype(np.uint8))
    scaled.info = image.info  # the orientation
    return scaled


def open_image(picture: Readable) -> Image.Image:
    """Returns an image with its head read; raises one of `pillow.ERRORS`."""
    return Image.fromarray(picture) if isinstance(picture, np.ndarray) else pillow.open_image(picture)


def problem(error: BaseException) -> str:
    """Returns one of `pillow.ERRORS` as a problem of an image."""
    return f"the image cannot be decoded: {pillow.reason(error)}"
