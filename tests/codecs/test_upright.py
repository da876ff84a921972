"""`upright=True` turns what Pillow's exif_transpose turns: any format, any number, any type of the tag, XMP."""

from __future__ import annotations

import io
import struct

import numpy as np
import pytest
from PIL import Image, ImageOps

from dlio import native
from dlio.codecs import decoders
from dlio.images import CenterCrop, Resize
from tests.helpers.decoding import without_core
from tests.helpers.images import encoded, image
from tests.helpers.transforms import keys

SHORT = ">HHIHH"
#: Type, count and value of the orientation's entry in a TIFF directory.
ENTRIES = {
    **{f"SHORT {number}": struct.pack(SHORT, 0x0112, 3, 1, number, 0) for number in (0, *range(1, 10), 255)},
    "BYTE 6": struct.pack(">HHI4B", 0x0112, 1, 1, 6, 0, 0, 0),
    "ASCII 6": struct.pack(">HHI4s", 0x0112, 2, 2, b"6\0"),
    "LONG 6": struct.pack(">HHII", 0x0112, 4, 1, 6),
    "LONG 65542": struct.pack(">HHII", 0x0112, 4, 1, 65542),
}
PICTURE = Image.open(io.BytesIO(image(3, width=40, height=24)))
XMP = b'<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:Description tiff:Orientation="6"/></x:xmpmeta>'


def exif(entry: bytes) -> bytes:
    return b"Exif\0\0MM\0*\0\0\0\x08\0\x01" + entry + b"\0\0\0\0"


def cases() -> dict[str, bytes]:
    """Returns pictures with every kind of orientation that their formats hold."""
    found = {f"{kind}, {name}": encoded(PICTURE, kind, exif=exif(entry)) for kind in ("JPEG", "PNG", "WEBP")
             for name, entry in ENTRIES.items()}  # fmt: skip
    found |= {f"TIFF, {number}": encoded(PICTURE, "TIFF", tiffinfo={0x0112: number}) for number in range(1, 10)}
    segment = b"http://ns.adobe.com/xap/1.0/\0" + XMP
    plain = encoded(PICTURE)
    return found | {
        "JPEG, XMP": plain[:2] + b"\xff\xe1" + struct.pack(">H", len(segment) + 2) + segment + plain[2:],
        "JPEG, CMYK": encoded(PICTURE.convert("CMYK"), exif=exif(ENTRIES["SHORT 6"])),
        "TIFF, XMP": encoded(PICTURE, "TIFF", tiffinfo={700: XMP}),
        "PNG, nothing": encoded(PICTURE, "PNG"),
    }


@pytest.mark.parametrize("with_core", [True, False], ids=["core", "Pillow"])
@pytest.mark.parametrize("case", cases())
def test_upright_is_what_exif_transpose_says(case, with_core, monkeypatch):
    if not with_core:
        without_core(monkeypatch)
    data = cases()[case]
    with Image.open(io.BytesIO(data)) as opened:
        expected = ImageOps.exif_transpose(opened).convert("RGB")
    found = decoders.decode_rgb(data, upright=True)
    assert found.size == expected.size
    assert np.array_equal(np.asarray(found), np.asarray(expected))
    for transform in (Resize(expected.size[::-1]), CenterCrop(16, resize=20)):
        out = np.empty((1, *transform.output_size, 3), np.uint8)
        assert decoders.decode_batch([data], transform, keys(1), out, upright=True) == {}
        if isinstance(transform, Resize):
            assert np.array_equal(out[0], np.asarray(expected))


def test_the_cores_orientation_is_pillows_of_shorts_and_longs():
    for name, entry in ENTRIES.items():
        data = encoded(PICTURE, exif=exif(entry))
        with Image.open(io.BytesIO(data)) as opened:
            pillows = opened.getexif().get(0x0112, 1)
        known = isinstance(pillows, int) and 1 <= pillows <= 8
        assert native.probe(data).orientation == (pillows if known else 1), name


def test_pixels_have_no_orientation():
    pixels = np.frombuffer(b"\xff\xd8\xffExif\0" * 9, np.uint8).reshape(4, 6, 3)
    out = np.empty((1, 4, 6, 3), np.uint8)
    assert decoders.decode_batch([pixels], Resize((4, 6)), keys(1), out, upright=True) == {}
    assert np.array_equal(out[0], pixels)
