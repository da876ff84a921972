"""Plain PNGs, decoded by the core: 8 bit RGB or grey, one picture, no chunk that changes pixels.

The core decodes them where it has libdeflate, in 30 us instead of Pillow's 112 for one of 32 x 32, in 4.6 ms instead of
8.5 for one of 500 x 375, on one core of a Xeon. Pillow decodes what the core refuses, and every PNG that is not plain.
"""

from __future__ import annotations

import struct
from collections.abc import Container
from contextlib import suppress
from zlib import crc32

import numpy as np
import numpy.typing as npt

from dlio import native

START = b"\x89PNG\r\n\x1a\n" + struct.pack(">I4s", 13, b"IHDR")
_HEAD = struct.Struct(">16xIIBBxxB")  # width, height, bit depth, colour type, interlace
_CHUNK = struct.Struct(">I4s")
_FIRST_CHUNK, _CHUNK_FRAME = 33, 12  # where the header ends; length, name and CRC of any chunk
_GREY, _RGB = 0, 2
_END = struct.pack(">I4sI", 0, b"IEND", crc32(b"IEND"))
_MAX_CHUNKS = 4096  # at most read; pixels come in pieces of at least 8 KiB from libpng, of 64 KiB from Pillow

#: Chunks before the pixels that neither change them nor make libpng warn about a profile, and their lengths.
_WITHOUT_EFFECT: dict[bytes, Container[int]] = {
    b"gAMA": {4},
    b"cHRM": {32},
    b"sRGB": {1},
    b"pHYs": {9},
    b"bKGD": {2, 6},
    b"tIME": {7},
    b"tEXt": range(2, 1 << 16),
}


def measure(data: object) -> tuple[int, int] | None:
    """Returns the height and width of a plain PNG, None for anything else."""
    if not isinstance(data, bytes | memoryview) or data[: len(START)] != START or len(data) < _FIRST_CHUNK:
        return None
    width, height, depth, colour, interlace = _HEAD.unpack_from(data)
    if depth != 8 or colour not in (_GREY, _RGB) or interlace or not (width and height):
        return None
    return (height, width) if _has_plain_chunks(data) else None


def _has_plain_chunks(data: bytes | memoryview) -> bool:
    """Returns whether all chunks between header and end are pixels, or chunks without effect before the pixels."""
    at, pixels_began = _FIRST_CHUNK, False
    for _ in range(_MAX_CHUNKS):
        if at + _CHUNK_FRAME > len(data):
            return False
        length, name = _CHUNK.unpack_from(data, at)
        end = at + length + _CHUNK_FRAME
        if name == b"IDAT":
            pixels_began = True
        elif pixels_began:
            return data[at:] == _END
        elif length not in _WITHOUT_EFFECT.get(name, ()) or crc32(data[at + 4 : end - 4]) != _crc_before(data, end):
            return False
        at = end
    return False


def _crc_before(data: bytes | memoryview, end: int) -> int:
    return int.from_bytes(data[end - 4 : end], "big")


def decode(data: bytes | memoryview) -> npt.NDArray[np.uint8] | None:
    """Returns all pixels of a PNG that `measure` found plain, uint8 (height, width, 3), RGB.

    Returns None if it is damaged, or if the core has no libdeflate: Pillow decodes then.
    """
    if not native.decodes_png:
        return None
    with suppress(MemoryError):  # Pillow's names the sample
        return native.decode_png(data)
    return None
