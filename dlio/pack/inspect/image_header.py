"""The header of an encoded image, and a check that its end exists, without decoding it.

The headers of JPEG (ITU-T T.81, B.2) and PNG (W3C PNG, 5 and 11.2.2) are read here, since almost all images have one of
these formats and Pillow takes 20 times as long. Pillow reads other formats. If the compiled core is installed, it reads
JPEGs, as in loading, so that an image that can be packed can be loaded.
"""

from __future__ import annotations

import struct
import warnings
import zlib
from collections.abc import Callable
from functools import lru_cache

from dlio import native
from dlio.codecs import jpeg, png
from dlio.codecs.decode_ready import is_record
from dlio.dataset.sample_group import Pieces
from dlio.dataset.schema import DECODE_READY, MAX_PIXELS, ImageInfo
from dlio.errors import DataError, SourceError
from dlio.io import limits

LARGE_BYTES = 64 << 20  # `check_large` does not check smaller inputs
HEAD_BYTES = 4 << 10
_PNG_BYTES = 33  # the signature and the first chunk
_PNG_END = b"IEND\xaeB`\x82"
_PNG_CHANNELS = {0: 1, 2: 3, 3: 3, 4: 2, 6: 4}  # a palette's colours are red, green and blue
_JPEG_END = b"\xff\xd9"
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}  # SOF0 to SOF15 without DHT, JPG, DAC
_SCAN = 0xDA
_info = lru_cache(1 << 12)(ImageInfo)
# How files of the formats of dlio/codecs/pillow.py begin; WebP's RIFF is followed by its size.
_STARTS = (b"\xff\xd8\xff", b"\x89PNG", b"BM", b"II*\0", b"MM\0*", b"II+\0", b"MM\0+", b"RIFF", b"GIF8")
_NETPBM = tuple(b"P%c" % kind for kind in b"0123456fy")


def inspect_images(images: Pieces) -> list[ImageInfo]:
    """Returns `inspect_image` of each image, in less time for PNGs of a few sizes; raises the same."""
    data, bounds = images.data, images.bounds.tolist()
    heads = [data[start : start + _PNG_BYTES] for start in bounds[:-1]]
    ends = {data[stop - len(_PNG_END) : stop] for stop in bounds[1:]}
    if (
        images.sizes.min() < _PNG_BYTES
        or ends != {_PNG_END}
        or not all(head.startswith(png.START) for head in {*heads})
    ):
        return list(map(inspect_image, images))
    return list(map(_png_header, heads))


def inspect_image(data: bytes) -> ImageInfo:
    """Returns format, size and channels of an encoded image.

    Raises:
        SourceError: `data` is empty, has no known format, is cut off, or claims more than `MAX_PIXELS`.
    """
    if not data:
        raise SourceError("it is empty, expected an image")
    if data.startswith(png.START):
        return _png(data)
    if data.startswith(jpeg.START):
        found = _probed(data)
        own = found and _info("JPEG", found.height, found.width, found.components, found.crop_ready)
        return _bounded(own or _jpeg(data))
    if is_record(data):
        return _bounded(_record(data))
    return _bounded(_other(data))


def _bounded(info: ImageInfo) -> ImageInfo:
    if info.width * info.height > MAX_PIXELS:
        raise SourceError(f"it claims {info.width} x {info.height} pixels, at most {MAX_PIXELS:,} are accepted")
    return info


def _png(data: bytes) -> ImageInfo:
    info = _png_header(data[:_PNG_BYTES])
    if not data.endswith(_PNG_END) and data.rfind(_PNG_END) < 0:
        raise SourceError("it is cut off: the end of the PNG is missing")
    return info


@lru_cache(1 << 12)  # most images of a data set have a few sizes
def _png_header(head: bytes) -> ImageInfo:
    width, height, _, color, _, _, _, crc = struct.unpack_from(">IIBBBBBI", head.ljust(_PNG_BYTES, b"\0"), 16)
    if zlib.crc32(head[12:29]) != crc or color not in _PNG_CHANNELS or not width or not height:
        raise SourceError("it is not an image: its PNG header is damaged")
    return _bounded(ImageInfo("PNG", height, width, _PNG_CHANNELS[color]))


def _probed(data: bytes) -> native.Probe | None:
    """Returns what the core finds in the headers of a JPEG or a record; None if it does not read them."""
    try:
        return jpeg.probe(data)
    except DataError as error:
        raise SourceError(str(error)) from None


def _record(data: bytes) -> ImageInfo:
    if (found := _probed(data)) is None:
        raise SourceError(f"it is a {DECODE_READY} of a version that this dlio does not read: install a newer one")
    was_progressive = not native.planes_restores_original(data)
    return _info(DECODE_READY, found.height, found.width, found.components, True, was_progressive)


def _jpeg(data: bytes) -> ImageInfo:
    """Walks the segments before the first scan; the end marker never occurs in a scan's data."""
    at, info = 2, None
    try:
        while True:
            if data[at] != 0xFF:
                raise SourceError(f"it is not an image: expected a JPEG marker at byte {at}")
            marker = data[at + 1]
            if marker == 0xFF:  # any number of these may stand before a marker
                at += 1
                continue
            if marker == _SCAN:
                break
            if marker in _FRAMES and info is None:
                height, width, channels = struct.unpack_from(">HHB", data, at + 5)
                info = ImageInfo("JPEG", height, width, channels)
            at += 2 + (0 if marker == 0x01 or 0xD0 <= marker <= 0xD7 else int.from_bytes(data[at + 2 : at + 4], "big"))
    except (IndexError, struct.error):
        raise SourceError(f"{jpeg.TRUNCATED}: it ends within its header") from None
    if info is None or not info.width or not info.height:
        raise SourceError("it is not an image: the JPEG has no frame before its first scan")
    if data.rfind(_JPEG_END, at) < 0:
        raise SourceError(f"{jpeg.TRUNCATED}: its end is missing")
    return info


def _other(data: bytes) -> ImageInfo:
    from dlio.codecs import pillow

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # our own bound is checked by the caller
            with pillow.open_image(data) as image:
                channels = 3 if image.mode == "P" else len(image.getbands())
                return ImageInfo(image.format or "", image.height, image.width, channels)
    except pillow.ERRORS as error:
        raise SourceError(f"it is not an image: {pillow.reason(error)}") from None


def decode_image(data: bytes) -> None:
    """Decodes an image and throws the pixels away; raises SourceError if header or pixels are damaged."""
    from dlio.codecs import pillow

    inspect_image(data)
    try:
        if jpeg.decode(data) is not None:
            return
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with pillow.open_image(data) as image:
                image.load()
    except pillow.ERRORS as error:
        raise SourceError(f"it cannot be decoded: {pillow.reason(error)}") from None


def check_large(head: Callable[[], bytes], num_bytes: int) -> None:
    """Checks that an input may be an image by its first `HEAD_BYTES`, before memory is allocated for all of it.

    Args:
        head: returns them; called only for an input of more than `LARGE_BYTES`.
        num_bytes: its size.

    Raises:
        SourceError: it is not an image, or too large.
    """
    if num_bytes <= LARGE_BYTES:
        return
    if not head().startswith((*_STARTS, *_NETPBM)):
        raise SourceError(f"it is not an image: its {num_bytes:,} bytes begin like no known format")
    if num_bytes > limits.sample_bytes():
        most = f"more than the limit of {limits.sample_bytes():,} for one sample"
        raise SourceError(f"it has {num_bytes:,} bytes, {most}: if it is an image, set DLIO_MAX_SAMPLE to its size")
