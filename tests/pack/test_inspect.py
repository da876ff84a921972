"""Headers read without Pillow say what Pillow says; what is no image, or is cut off, is refused."""

from __future__ import annotations

import io
import zlib
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from dlio.errors import SourceError
from dlio.pack.inspect.image_header import decode_image, inspect_image
from tests.helpers.images import encoded, image

KINDS = [("PNG", mode) for mode in ("L", "RGB", "RGBA", "P", "I;16")] + [
    ("JPEG", mode) for mode in ("L", "RGB", "CMYK")
]
KINDS += [("BMP", "RGB"), ("BMP", "P"), ("TIFF", "RGB"), ("WEBP", "RGB"), ("PPM", "RGB")]


@pytest.mark.parametrize(("kind", "mode"), KINDS)
@pytest.mark.parametrize(("width", "height"), [(1, 1), (24, 16), (300, 7)])
def test_the_header_says_what_pillow_says(kind, mode, width, height):
    data = image(3, kind, mode, width, height)
    with Image.open(io.BytesIO(data)) as opened:
        expected = (opened.format, opened.height, opened.width, 3 if mode == "P" else len(opened.getbands()))
    info = inspect_image(data)
    assert (info.format, info.height, info.width, info.channels) == expected
    decode_image(data)


@pytest.mark.parametrize(
    "options", [{"progressive": True}, {"exif": b"Exif\0\0" + b"\xff\xd9" * 40}, {"comment": "x" * 999}]
)
def test_jpegs_of_any_build(options):
    data = encoded(Image.new("RGB", (40, 30)), **options)
    info = inspect_image(data)
    assert (info.width, info.height, info.channels) == (40, 30, 3)
    for end in range(2, len(data) - 1, 7):
        with pytest.raises(SourceError, match=r"truncated or damaged|not an image"):
            inspect_image(data[:end])


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
@pytest.mark.parametrize("tail", [b"\0" * 10, b"junk after the end"])
def test_bytes_after_the_end_are_left_alone(kind, tail):
    assert inspect_image(image(1, kind) + tail) == inspect_image(image(1, kind))


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
@given(share=st.floats(0.001, 0.999))
def test_a_cut_image_is_refused(kind, share):
    data = image(1, kind, width=100, height=80)
    end = min(int(len(data) * share), len(data) - (2 if kind == "JPEG" else 9))
    with pytest.raises(SourceError, match=r"cut off|not an image|is empty|damaged|no JPEG"):
        inspect_image(data[:end])


@given(
    st.binary(max_size=200), st.sampled_from([b"", b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", b"II*\0", b"BM"])
)
def test_any_bytes_are_read_or_refused(data, start):
    with suppress(SourceError):
        inspect_image(start + data)


def test_a_decompression_bomb_is_refused():
    data = bytearray(image(0, "PNG"))
    data[16:24] = (20_000).to_bytes(4, "big") * 2
    data[29:33] = zlib.crc32(data[12:29]).to_bytes(4, "big")
    with pytest.raises(SourceError, match="20000 x 20000 pixels, at most 178,956,970"):
        inspect_image(bytes(data))
    jpeg = bytearray(image(0, "JPEG"))
    at = jpeg.index(b"\xff\xc0") + 5
    jpeg[at : at + 4] = b"\xff\xff\xff\xff"
    with pytest.raises(SourceError, match=r"65500 pixels|65535 x 65535 pixels"):
        inspect_image(bytes(jpeg))


@pytest.mark.parametrize("data", [b"", b"text", b"\xff\xd8\xff", b"\xff\xd8\xff\xd9", b"\xff\xd8\xff\xe0\0\x02\0\xff"])
def test_no_image(data):
    with pytest.raises(SourceError):
        inspect_image(data)
    with pytest.raises(SourceError):
        decode_image(data)
