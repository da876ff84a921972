"""The EXIF orientation of an encoded image: how its pixels, boxes and masks are turned to be upright."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from dlio.dataset.schema import DECODE_READY_START

if TYPE_CHECKING:
    from PIL import Image

TAG = 0x0112
AS_STORED = 1
_SWAPPED = (5, 6, 7, 8)  # height and width are exchanged first
_MIRRORED = (2, 3, 6, 7)  # then left and right
_FLIPPED = (3, 4, 7, 8)  # then top and bottom
_JPEGS = (b"\xff\xd8", DECODE_READY_START)  # which keeps the segments of its JPEG unchanged
_IN_JPEG = (b"Exif\0", b"tiff:Orientation")
_IN_OTHERS = (b"eXIf", b"EXIF", b"type exif", b"XML:com.adobe.xmp", b"tiff:Orientation")


def may_be_turned(picture: bytes | memoryview) -> bool:
    """Returns whether an encoded image may have an orientation, in EXIF or XMP: Pillow decides."""
    data = bytes(picture)
    return any(head in data for head in (_IN_JPEG if data.startswith(_JPEGS) else _IN_OTHERS))


def orientation_of(picture: object) -> int:
    """Returns the orientation by which `upright` turns an image, 2 to 8 as EXIF counts them; 1 if it does not.

    Pillow turns TIFFs whenever it decodes them, so theirs is 1.

    Raises:
        one of `dlio.codecs.pillow.ERRORS`: the head is damaged.
    """
    if not isinstance(picture, (bytes, memoryview)) or not may_be_turned(picture):
        return AS_STORED
    from dlio.codecs import pillow

    with pillow.open_image(picture) as image:
        return orientation_of_opened(image)


def orientation_of_opened(image: Image.Image) -> int:
    """Returns the orientation of an image that Pillow has opened; raises as `orientation_of`."""
    found = AS_STORED if image.format == "TIFF" else image.getexif().get(TAG, AS_STORED)
    return found if isinstance(found, int) and 2 <= found <= 8 else AS_STORED


def exif_of(orientation: int) -> bytes:
    """Returns EXIF that holds an orientation and nothing else."""
    entry = struct.pack(">HHIHH", TAG, 3, 1, orientation, 0)
    return b"Exif\0\0MM\0*\0\0\0\x08\0\x01" + entry + bytes(4)


def with_orientation(picture: bytes, orientation: int) -> bytes:
    """Returns a JPEG without EXIF with an orientation; unchanged if it is not turned."""
    if orientation == AS_STORED:
        return picture
    payload = exif_of(orientation)
    has_jfif = picture[2:4] == b"\xff\xe0"  # which comes first
    at = 4 + int.from_bytes(picture[4:6], "big") if has_jfif else 2
    return picture[:at] + b"\xff\xe1" + struct.pack(">H", len(payload) + 2) + payload + picture[at:]


def turned_size(size: tuple[int, int], orientation: int) -> tuple[int, int]:
    """Returns height and width after turning."""
    return size[::-1] if orientation in _SWAPPED else size


def turn_boxes(boxes: npt.ArrayLike, orientation: int, size: tuple[int, int]) -> npt.NDArray[np.float64]:
    """Returns boxes of an upright image, (left, top, right, bottom), float64 of shape (k, 4).

    Args:
        boxes: those of the image as it is stored.
        orientation: how it is turned.
        size: its height and width as it is stored.
    """
    given = np.asarray(boxes, dtype=np.float64).reshape(-1, 4)
    if orientation in _SWAPPED:
        given = given[:, [1, 0, 3, 2]]
    height, width = turned_size(size, orientation)
    left, top, right, bottom = given.T
    if orientation in _MIRRORED:
        left, right = width - right, width - left
    if orientation in _FLIPPED:
        top, bottom = height - bottom, height - top
    return np.stack([left, top, right, bottom], axis=1)


def turn_image(image: Image.Image, orientation: int) -> Image.Image:
    """Returns the image as it is turned."""
    from PIL import Image

    of = Image.Transpose
    methods = {
        2: of.FLIP_LEFT_RIGHT,
        3: of.ROTATE_180,
        4: of.FLIP_TOP_BOTTOM,
        5: of.TRANSPOSE,
        6: of.ROTATE_270,
        7: of.TRANSVERSE,
        8: of.ROTATE_90,
    }
    return image.transpose(methods[orientation]) if orientation in methods else image
