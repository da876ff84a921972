"""Pillow is asked for common formats only; whatever it raises on damage is an error of ours; one bound on pixels."""

from __future__ import annotations

import warnings
import zlib
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from dlio.codecs import decoders, pillow
from dlio.dataset.schema import MAX_PIXELS
from dlio.errors import DataError, SourceError
from dlio.pack.inspect.image_header import decode_image, inspect_image
from dlio.pack.recode import Recode
from tests.helpers.images import encoded, image

REFUSED = ("EPS", "IM", "TGA", "DDS", "SGI", "PCX", "ICO")
POSTSCRIPT = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n"


def blue(kind: str) -> bytes:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Pillow is about to drop some
        return encoded(Image.new("RGB", (32, 32), (9, 99, 200)), kind)


def no_image_for_any(data: bytes, match: str) -> None:
    """Checks that packing, decoding and loading refuse `data` alike."""
    with pytest.raises(SourceError, match=match):
        inspect_image(data)
    with pytest.raises(SourceError, match=match):
        decode_image(data)
    with pytest.raises(DataError, match=match):
        decoders.decode_rgb(data)
    assert decoders.measure([data])[1].keys() == {0}


@pytest.mark.parametrize("kind", REFUSED)
def test_rare_formats_are_no_images(kind):
    data = POSTSCRIPT if kind == "EPS" else blue(kind)
    no_image_for_any(data, "no known format, expected JPEG, PNG")


def test_a_jpeg_left_to_pillow_has_100_scans_at_most():
    data = pillow.encoded(Image.new("CMYK", (16, 16)), "JPEG", progressive=True)
    head, scan = data[:-2].rsplit(b"\xff\xda", 1)
    room = 100 - data.count(b"\xff\xda")
    assert decoders.decode_rgb(head + (1 + room) * (b"\xff\xda" + scan) + b"\xff\xd9" + data).size == (16, 16)
    with pytest.raises(DataError, match="more than 100 scans"):
        decoders.decode_rgb(head + (2 + room) * (b"\xff\xda" + scan) + b"\xff\xd9")


@pytest.mark.parametrize("kind", pillow.FORMATS)
def test_common_formats_are(kind):
    data = blue(kind)
    assert inspect_image(data).format == kind
    assert decoders.decode_rgb(data).size == (32, 32)


@pytest.mark.filterwarnings("ignore")  # Pillow's, about damage
@pytest.mark.parametrize("kind", [*pillow.FORMATS, "DDS", "IM"])
@given(
    damage=st.lists(st.tuples(st.floats(0, 0.999), st.integers(0, 255)), min_size=1, max_size=6), share=st.floats(0, 1)
)
def test_damage_raises_nothing_but_our_errors(kind, damage, share):
    data = bytearray(blue(kind))
    for place, value in damage:
        data[int(place * min(len(data), 200))] = value
    data = data[: len(data) - int(share**4 * len(data))]
    for attempt in (decode_image, decoders.decode_rgb, lambda data: Recode(resize=8).apply(data, inspect_image(data))):
        with suppress(DataError):
            attempt(bytes(data))
    decoders.measure([bytes(data)])


def claiming(kind: str, width: int, height: int) -> bytes:
    """Returns an image whose header claims another size than it has."""
    data = bytearray(image(0, kind))
    if kind == "PNG":
        data[16:24] = width.to_bytes(4, "big") + height.to_bytes(4, "big")
        data[29:33] = zlib.crc32(data[12:29]).to_bytes(4, "big")
    elif kind == "JPEG":
        at = data.index(b"\xff\xc0") + 5
        data[at : at + 4] = height.to_bytes(2, "big") + width.to_bytes(2, "big")
    return bytes(data)


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
@pytest.mark.parametrize("kind", ["PNG", "JPEG"])
def test_packing_and_loading_have_one_limit_on_pixels(kind):
    side = 13_377
    assert side * side < MAX_PIXELS < (side + 1) * (side + 1)
    inspect_image(claiming("PNG", side, side))
    sizes, _ = decoders.measure([claiming("PNG", side, side)])
    np.testing.assert_array_equal(sizes, [[side, side]])
    with pytest.raises(SourceError, match="13378 x 13378 pixels"):
        inspect_image(claiming(kind, side + 1, side + 1))
    assert decoders.measure([claiming(kind, side + 1, side + 1)])[1].keys() == {0}
