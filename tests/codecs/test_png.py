"""Plain PNGs by the core: Pillow's pixels, and Pillow's result for PNGs that are not plain or not whole."""

from __future__ import annotations

import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image, PngImagePlugin

from dlio import native
from dlio.codecs import decoders, png
from dlio.images import CenterCrop, RandomResizedCrop, Resize
from tests.helpers.images import encoded, image
from tests.helpers.transforms import keys

pytestmark = pytest.mark.skipif(not native.decodes_png, reason="the core was built without libdeflate")

PICTURE = Image.open(io.BytesIO(image(3, width=40, height=24))).convert("RGB")
TURNED = b"Exif\0\0MM\0*\0\0\0\x08\0\x01" + struct.pack(">HHIHH", 0x0112, 3, 1, 6, 0) + bytes(4)
PRIMARIES = struct.pack(">8I", 31270, 32900, 64000, 33000, 30000, 60000, 15000, 6000)


def png_of(picture: Image.Image = PICTURE, chunks: dict[bytes, bytes] | None = None, **options: object) -> bytes:
    """Returns a PNG, `chunks` before its pixels."""
    info = PngImagePlugin.PngInfo()
    for name, content in (chunks or {}).items():
        info.add(name, content)
    return encoded(picture, "PNG", pnginfo=info, **options)


def chunk(name: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))


def built(rows: bytes, *, colour: int = 2, interlace: int = 0, cut: int = 0) -> bytes:
    """Returns a PNG of PICTURE's size with these filtered rows, less the last `cut` compressed bytes."""
    head = struct.pack(">IIBBBBB", *PICTURE.size, 8, colour, 0, 0, interlace)
    packed = zlib.compress(rows)
    parts = {b"IHDR": head, b"IDAT": packed[: len(packed) - cut], b"IEND": b""}
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(name, content) for name, content in parts.items())


def changed(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def rows() -> bytes:
    pixels = PICTURE.tobytes()
    return b"".join(b"\0" + pixels[at : at + 120] for at in range(0, len(pixels), 120))


PLAIN = {
    "colour": png_of(),
    "grey": png_of(PICTURE.convert("L")),
    "gamma": png_of(chunks={b"gAMA": struct.pack(">I", 100000)}),
    "gamma and primaries": png_of(chunks={b"gAMA": struct.pack(">I", 45455), b"cHRM": PRIMARIES}),
    "sRGB": png_of(chunks={b"sRGB": b"\0"}),
    "resolution, text, time": png_of(
        dpi=(300, 300), chunks={b"tEXt": b"Title\0photo", b"tIME": struct.pack(">H5B", 2026, 1, 2, 3, 4, 5)}
    ),
    "background": png_of(chunks={b"bKGD": bytes(6)}),
    "one pixel": png_of(PICTURE.crop((0, 0, 1, 1))),
    "in pieces": png_of(PICTURE.resize((300, 200)), compress_level=0),
    "data behind the pixels": built(rows() + b"more"),
}
OTHERS = {
    "16 bit grey": png_of(Image.fromarray(np.arange(960, dtype=np.uint16).reshape(24, 40) * 60)),
    "1 bit": png_of(PICTURE.convert("1")),
    "palette": png_of(PICTURE.quantize(40)),
    "palette and transparency": png_of(PICTURE.quantize(40), transparency=3),
    "alpha": png_of(PICTURE.convert("RGBA")),
    "grey and alpha": png_of(PICTURE.convert("LA")),
    "a transparent colour": png_of(transparency=(1, 2, 3)),
    "a transparent grey": png_of(PICTURE.convert("L"), transparency=7),
    "profile": png_of(icc_profile=b"no profile"),
    "orientation": png_of(exif=TURNED),
    "compressed text": png_of(chunks={b"zTXt": b"Title\0\0" + zlib.compress(b"photo")}),
    "animation": png_of(save_all=True, append_images=[PICTURE.convert("L").convert("RGB")]),
    "gamma of another length": png_of(chunks={b"gAMA": bytes(3)}),
    "checksum of the gamma": changed(PLAIN["gamma"], 45),
    "many chunks": PLAIN["colour"][:33] + chunk(b"tEXt", b"a\0b") * 5000 + PLAIN["colour"][33:],
    "text behind the pixels": PLAIN["colour"][:-12] + chunk(b"tEXt", b"a\0b") + PLAIN["colour"][-12:],
    "bytes behind the end": PLAIN["colour"] + b"more",
}


WHOLE = built(rows())
DAMAGED: dict[str, bytes] = {
    "checksum of the header": changed(WHOLE, 29),
    "checksum of the pixels": changed(WHOLE, len(WHOLE) - 13),
    "pixels": changed(WHOLE, 200),
    "checksum within the compression": built(rows(), cut=4),
    "compressed pixels end early": built(rows(), cut=90),
    "rows are missing": built(rows()[:1000]),
    "no such filter": built(rows()[:121] + b"\x09" + rows()[122:]),
    "broken chunk behind the pixels": WHOLE[:-12] + chunk(b"tRNS", b"a") + WHOLE[-12:],
    "no end": WHOLE[:-12],
    "half": WHOLE[: len(WHOLE) // 2],
    "header only": WHOLE[:33],
    "half a header": WHOLE[:20],
    "no width": WHOLE[:16] + bytes(4) + WHOLE[20:],
    "size of a bomb": WHOLE[:16] + b"\0\0\xff\xff" * 2 + WHOLE[24:],
    "wider than its rows": WHOLE[:16] + struct.pack(">II", 1 << 24, 1) + WHOLE[24:],
    "chunk reaches beyond the file": WHOLE[:33] + struct.pack(">I", 1 << 31) + b"tEXt" + WHOLE[41:],
}


def decode(data: bytes, transform: CenterCrop | RandomResizedCrop | Resize) -> tuple[np.ndarray, dict[int, str]]:
    out = np.empty((3, 3, *transform.output_size), np.uint8)
    good = PLAIN["colour"]
    problems = decoders.decode_batch([good, data, good], transform, keys(3, 1), out)
    return out, problems


def test_the_core_decodes_whatever_is_plain() -> None:
    found = {name: native.decode_png(data) for name, data in PLAIN.items()}
    assert [name for name, pixels in found.items() if pixels is None] == ["data behind the pixels"]
    assert [name for name, data in DAMAGED.items() if native.decode_png(data) is not None] == [
        "broken chunk behind the pixels"  # `measure` finds it
    ]
    for filters in range(5):  # each filter in the first row and after another
        pixels = np.random.default_rng(filters).integers(0, 256, (24, 121), np.uint8)
        pixels[:, 0] = (np.arange(24) + filters) % 5
        data = built(pixels.tobytes())
        assert np.array_equal(native.decode_png(data), np.asarray(Image.open(io.BytesIO(data))))
        grey = built(pixels[:, :41].tobytes(), colour=0)
        assert np.array_equal(native.decode_png(grey), np.asarray(Image.open(io.BytesIO(grey)).convert("RGB")))


@pytest.mark.parametrize("name", PLAIN)
def test_plain_ones_have_pillows_pixels(name: str) -> None:
    pixels = png.decode(PLAIN[name])
    expected = np.asarray(Image.open(io.BytesIO(PLAIN[name])).convert("RGB"))
    assert name == "data behind the pixels" if pixels is None else np.array_equal(pixels, expected)
    assert png.measure(PLAIN[name]) == expected.shape[:2]


@pytest.mark.parametrize("name", OTHERS)
def test_others_are_left_to_pillow(name: str) -> None:
    assert png.measure(OTHERS[name]) is None


@pytest.mark.parametrize("data", [b"", b"\x89PNG\r\n\x1a\n", image(1, "JPEG"), np.zeros((4, 4, 3), np.uint8), None])
def test_what_is_no_png_is_left_alone(data: object) -> None:
    assert png.measure(data) is None


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_ones_are_left_to_pillow(name: str) -> None:
    assert png.measure(DAMAGED[name]) is None or png.decode(DAMAGED[name]) is None


@pytest.mark.parametrize("name", [*PLAIN, *OTHERS, *DAMAGED])
@pytest.mark.parametrize("transform", [Resize((24, 40)), CenterCrop(9), RandomResizedCrop(16, flip=True)], ids=repr)
def test_by_whatever_decodes_all_is_the_same(
    name: str, transform: CenterCrop | RandomResizedCrop | Resize, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = {**PLAIN, **OTHERS, **DAMAGED}[name]
    pixels, problems = decode(data, transform)
    monkeypatch.setattr(native, "decodes_png", False)
    expected, pillows = decode(data, transform)
    assert problems == pillows and set(problems) <= {1}
    assert np.abs(pixels.astype(int) - expected).max() <= 1  # of tall boxes Pillow resizes the rows first


@pytest.mark.parametrize("name", ["pixels", "compressed pixels end early", "no such filter", "half", "size of a bomb"])
def test_damage_is_named(name: str) -> None:
    pixels, problems = decode(DAMAGED[name], Resize(8))
    assert list(problems) == [1] and problems[1].startswith("the image ")
    assert not pixels[1].any() and pixels[0].any() and np.array_equal(pixels[0], pixels[2])
