"""JPEGs of every kind that the compiled core meets, the same bytes for the same arguments."""

from __future__ import annotations

import base64
from functools import cache

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from tests.helpers.images import encoded

SUBSAMPLINGS = ("4:4:4", "4:2:2", "4:2:0", "4:4:0", "4:1:1", "grey")
Box = tuple[int, int, int, int]  # left, top, width, height

#: Kinds that Pillow does not write, made by jpegtran of `picture(40, 33)`: arithmetic coding, and a baseline JPEG with
#: a scan for each component.
ARITHMETIC = base64.b85decode(
    b"|JeWF01!$>Nk#wx0RR9200961|JwjV08lqPMm#c5MnOheRZw4e$bxuoZg};txsk~K|NsC0|NsC0|NsC0|NsC0|NsC0|NsC0|NsC0|NsC0|NsC0|N"
    b"q+nLjhG<T6k%A>w<#o|NsC0|NsC0|NsC0|NsC0|NsC0|NsC0|NsC0|NsC0|NsC0|NsC0|NsC0|NsC0|NsC0|NsBV01*fPApj@?0U`hb5di}c0sqV"
    b"Z3IGrg1pyEd1^?Or3<CiG0ucid06zfG8OUT_61JG;i1m{X{{VaKnkE|>j(|InUsGvfHzGj`;Jz8weZW3fuIt1x@cMM`BndVb7}VJs|Je"
)
SEPARATE_SCANS = base64.b85decode(
    b"|JeWF01!$>Nk#wx0RR9200961|JwjV08lqPMm#c5MnOheRZw4e$bxuoZg};txsk~K|NsC0|NsC0|NsC0|NsC0|NsC0|NsC0|NsC0|NsC0|NsC0|N"
    b"q+nLjhG<T6k%A>w<#o|NsC0|NsC0|NsC0|NsC0|NsC0|NsC0|NsC0|NsC0|NsC0|NsC0|NsC0|NsC0|NsC0|NsBM01*fPApj@?0U`hb5di}c0sq7"
    b"R7ytkR0RaF20000000000000010s{p9!~hx)0RaI30|5X40000000000009vK5;4L5+5iXv0RR9$0Nx%9D-"
    b"mJJsZ<kVDOV}!=+``|l;<UO8peGyIp}}?!~hln0RaI30000000000000000ssO3!~hi$0RaF200000000000000001^M%00;pB5dc2`3@T7#VI=>"
    b"=02l!P0s{a50000000000000020{{U8|HJ?n5di@K0RR9100000000000003J5&zl%2mu2T06ze!1=P`*1%=j-Qmg;j"
)


@cache
def picture(width: int, height: int, seed: int = 0) -> Image.Image:
    """Returns an RGB picture with gradients, edges and noise, so that every coefficient matters."""
    rows, columns = np.mgrid[:height, :width]
    waves = [np.sin(columns / 17 + rows / 31), np.cos(columns / 23 - rows / 11), np.sin(columns * rows / 3000)]
    noise = np.random.default_rng(seed).normal(0, 12, (height, width, 3))
    return Image.fromarray((128 + 100 * np.stack(waves, axis=-1) + noise).clip(0, 255).astype(np.uint8))


@cache
def jpeg(
    width: int,
    height: int,
    subsampling: str = "4:2:0",
    *,
    progressive: bool = False,
    restart: int = 0,
    quality: int = 90,
) -> bytes:
    """Returns a JPEG of that size; `restart` is its restart interval in MCUs, 0 for none."""
    if subsampling in ("4:4:0", "4:1:1") and not progressive:
        return _retagged(width, height, subsampling, restart)
    mode = "L" if subsampling == "grey" else "RGB"
    known = subsampling if subsampling in ("4:4:4", "4:2:2") else "4:2:0"
    return encoded(
        picture(width, height).convert(mode),
        quality=quality,
        subsampling=known,
        progressive=progressive,
        restart_marker_blocks=restart,
    )


def of_12_bits(data: bytes) -> bytes:
    """Returns a JPEG that says of itself that its samples have 12 bits."""
    precision = max(data.find(b"\xff\xc0"), data.find(b"\xff\xc1")) + 4
    return data[:precision] + b"\x0c" + data[precision + 1 :]


def _retagged(width: int, height: int, subsampling: str, restart: int) -> bytes:
    """Returns a JPEG of a subsampling that Pillow does not write: its blocks in another order, which shuffles them.

    An MCU of 4:2:2 and one of 4:4:0 both hold 2 + 1 + 1 blocks, one of 4:2:0 and one of 4:1:1 both 4 + 1 + 1. So with
    as many MCUs only the frame header differs.
    """
    if subsampling == "4:4:0":
        mcus = -(-width // 8) * -(-height // 16)
        source = encoded(picture(16 * mcus, 8), subsampling="4:2:2", quality=90, restart_marker_blocks=restart)
    else:
        mcus = -(-width // 32) * -(-height // 8)
        source = encoded(picture(16 * mcus, 16), subsampling="4:2:0", quality=90, restart_marker_blocks=restart)
    data = bytearray(source)
    frame = data.index(b"\xff\xc0")
    data[frame + 5 : frame + 9] = height.to_bytes(2, "big") + width.to_bytes(2, "big")
    data[frame + 11] = 0x12 if subsampling == "4:4:0" else 0x41
    return bytes(data)


def resized(pixels: NDArray[np.uint8], width: int, height: int) -> NDArray[np.uint8]:
    """Returns Pillow's antialiased bilinear resize, uint8 (height, width, 3)."""
    return np.asarray(Image.fromarray(pixels).resize((width, height), Image.Resampling.BILINEAR))


def crop(pixels: NDArray[np.uint8], box: Box) -> NDArray[np.uint8]:
    """Returns a copy of the box's pixels."""
    left, top, width, height = box
    return np.ascontiguousarray(pixels[top : top + height, left : left + width])
