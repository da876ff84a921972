"""Decoders: Pillow's and torchvision's pixels of every kind of image, damage that is named."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from dlio.codecs import decoders
from dlio.errors import DataError, UsageError
from dlio.images import CenterCrop, RandomResizedCrop, Resize, Transform
from tests.helpers.decoding import without_core
from tests.helpers.images import encoded, photo
from tests.helpers.transforms import TRANSFORMS, keys

RESAMPLING = {name: getattr(Image.Resampling, name.upper()) for name in ("bilinear", "bicubic", "nearest")}


@pytest.mark.parametrize("with_core", [True, False])
@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
@pytest.mark.parametrize("size", [(500, 375), (333, 500), (257, 901), (120, 97), (256, 256), (64, 2000)])
def test_center_crop_gives_the_pixels_of_resize_and_crop(
    kind: str, size: tuple[int, int], with_core: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torchvision's Resize(256) and CenterCrop(224) on PIL images; of tall ones Pillow resizes the rows first."""
    if not with_core:
        without_core(monkeypatch)
    picture = encoded(photo(*size), kind)
    pixels, problems = decode([picture], CenterCrop(224))
    assert problems == {}
    distance = np.abs(pixels[0].astype(int) - resized_and_cropped(Image.open(io.BytesIO(picture)), 256, 224))
    assert distance.mean() < 0.3 and distance.max() <= 1


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic", "nearest"])
@pytest.mark.parametrize(("wide", "high"), [(41, 33), (13, 50), (1, 9), (200, 7)])
def test_every_interpolation_is_pillows(interpolation: str, wide: int, high: int) -> None:
    """Both layouts, larger and smaller, with overshoot. Columns come first, unlike in Pillow if there are few."""
    image = Image.fromarray(np.random.default_rng(wide).integers(0, 2, (high, wide, 3), np.uint8) * 255)
    picture = encoded(image, "PNG")
    random = RandomResizedCrop((24, 17), flip=True, interpolation=interpolation)
    for transform in (random, *(Resize(size, interpolation=interpolation) for size in ((20, 31), (3, 60), (90, 5)))):
        windows = transform.plan(np.array([[high, wide]]), keys(1))
        left, top, width, height = windows.boxes[0].tolist()
        (rows, columns), method = transform.output_size, RESAMPLING[interpolation]
        part = image.crop((left, top, left + width, top + height))
        expected = np.asarray(part.resize((columns, height), method).resize((columns, rows), method))
        expected = expected[:, ::-1] if windows.flips[0] else expected
        last = np.empty((1, *transform.output_size, 3), np.uint8)
        assert decoders.decode_batch([picture], transform, keys(1), last) == {}
        found, _ = decode([picture], transform)
        assert np.array_equal(found[0], last[0]) and np.array_equal(found[0], expected)


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize(
    ("size", "resize"), [((20, 30), None), ((30, 20), 41), ((20, 30), (40, 30)), ((24, 9), (25, 77))]
)
def test_centres_may_have_any_height_and_width(
    size: tuple[int, int], resize: int | tuple[int, int] | None, interpolation: str
) -> None:
    image = photo(61, 47)
    pixels, _ = decode([encoded(image, "PNG")], CenterCrop(size, resize, interpolation=interpolation))
    expected = resized_and_cropped(image, resize or round(max(size) * 256 / 224), size, interpolation)
    assert np.abs(pixels[0].astype(int) - expected).max() <= 1


def resized_and_cropped(
    image: Image.Image, resize: int | tuple[int, int], size: int | tuple[int, int], interpolation: str = "bilinear"
) -> np.ndarray:
    """Returns what torchvision's Resize(resize) and CenterCrop(size) make of an image."""
    width, height = image.size
    short, (rows, columns) = min(width, height), (size, size) if isinstance(size, int) else size
    given = (resize * width // short, resize * height // short) if isinstance(resize, int) else resize[::-1]
    image = image.resize(given, RESAMPLING[interpolation])
    left, top = round((image.width - columns) / 2), round((image.height - rows) / 2)
    return np.asarray(image.crop((left, top, left + columns, top + rows)))


def as_rgb(picture: bytes) -> Image.Image:
    """Returns an image as Pillow's RGB, grey of 16 bits scaled to 8."""
    image = Image.open(io.BytesIO(picture))
    deep = image.mode == "I;16"
    return (Image.fromarray((np.asarray(image) / 257).round().astype(np.uint8)) if deep else image).convert("RGB")


def reference(picture: bytes, transform: Transform, key: np.ndarray) -> np.ndarray:
    """Returns what torchvision's steps on a PIL image give: convert, crop, resize, flip."""
    image = as_rgb(picture)
    if isinstance(transform, CenterCrop):
        return resized_and_cropped(image, transform.resize or round(transform.size * 256 / 224), transform.size)
    windows = transform.plan(np.array([image.size[::-1]]), key)
    left, top, width, height = windows.boxes[0].tolist()
    height_out, width_out = transform.output_size
    image = image.crop((left, top, left + width, top + height)).resize(
        (width_out, height_out), RESAMPLING[windows.interpolation]
    )
    return np.asarray(image)[:, ::-1] if windows.flips[0] else np.asarray(image)


def decode(pictures: list[bytes], transform: Transform, *, upright: bool = False) -> tuple[np.ndarray, dict[int, str]]:
    out = np.full((len(pictures), 3, *transform.output_size), 7, dtype=np.uint8)
    problems = decoders.decode_batch(pictures, transform, keys(len(pictures)), out, upright=upright)
    return out.transpose(0, 2, 3, 1), problems


def kinds_of_images() -> dict[str, bytes]:
    rgb = photo(61, 47)
    alpha = Image.fromarray(np.random.default_rng(1).integers(0, 255, (47, 61), dtype=np.uint8))
    deep = Image.fromarray(np.arange(47 * 61, dtype=np.uint16).reshape(47, 61) * 20)
    return {
        "jpeg": encoded(rgb, quality=92),
        "jpeg 4:4:4": encoded(rgb, subsampling=0),
        "progressive": encoded(rgb, progressive=True),
        "grey jpeg": encoded(rgb.convert("L")),
        "cmyk jpeg": encoded(rgb.convert("CMYK")),
        "png": encoded(rgb, "PNG"),
        "grey png": encoded(rgb.convert("L"), "PNG"),
        "16 bit png": encoded(deep, "PNG"),
        "palette png": encoded(rgb.quantize(40), "PNG"),
        "palette with transparency": encoded(rgb.quantize(40), "PNG", transparency=3),
        "alpha png": encoded(Image.merge("RGBA", (*rgb.split(), alpha)), "PNG"),
        "one bit png": encoded(rgb.convert("1"), "PNG"),
        "webp": encoded(rgb, "WEBP"),
        "tiff": encoded(rgb, "TIFF"),
        "gif": encoded(rgb, "GIF"),
        "bmp": encoded(rgb, "BMP"),
    }


@pytest.mark.parametrize("kind", kinds_of_images())
@pytest.mark.parametrize("transform", TRANSFORMS, ids=repr)
def test_every_kind_of_image_becomes_what_torchvision_makes_of_it(kind: str, transform: Transform) -> None:
    picture = kinds_of_images()[kind]
    pixels, problems = decode([picture], transform)
    assert problems == {}
    distance = np.abs(pixels[0].astype(int) - reference(picture, transform, keys(1)))
    assert distance.max() <= 3 and distance.mean() <= 1
    if not picture.startswith(b"\xff\xd8"):
        assert distance.max() <= isinstance(transform, CenterCrop)  # Pillow's own boxes between pixels are of 32 bit


def test_whole_images_are_pillows() -> None:
    for picture in kinds_of_images().values():
        expected = as_rgb(picture)
        assert decoders.decode_rgb(picture).tobytes() == expected.tobytes()


def test_rows_and_layouts_agree_in_a_mixed_batch() -> None:
    pictures = list(kinds_of_images().values())
    transform = RandomResizedCrop(24, flip=True)
    channels_first, _ = decode(pictures, transform)
    channels_last = np.empty((len(pictures), 24, 24, 3), dtype=np.uint8)
    decoders.decode_batch(pictures, transform, keys(len(pictures)), channels_last)
    assert (channels_first == channels_last).all()
    for row, picture in enumerate(pictures):
        distance = np.abs(
            channels_last[row].astype(int) - reference(picture, transform, keys(len(pictures))[row : row + 1])
        )
        assert distance.max() <= 3


@pytest.mark.parametrize("size", [(5, 3), (3, 5), (1, 3), (3, 1), (1, 1)])
def test_sides_of_3_pixels_are_not_taken_for_channels(size: tuple[int, int]) -> None:
    pictures = list(kinds_of_images().values())
    first = np.empty((len(pictures), 3, *size), np.uint8)
    last = np.empty((len(pictures), *size, 3), np.uint8)
    for out in first, last:
        assert decoders.decode_batch(pictures, Resize(size), keys(len(pictures)), out) == {}
    for row, picture in enumerate(pictures):
        distance = np.abs(last[row].astype(int) - reference(picture, Resize(size), keys(1)))
        assert distance.max() <= 3
    assert (first.transpose(0, 2, 3, 1) == last).all()


@pytest.mark.parametrize(("size", "shape"), [(3, (3, 3, 3)), (4, (3, 4, 5)), (4, (4, 4))])
def test_an_array_that_does_not_tell_its_layout_is_refused(size: int, shape: tuple[int, ...]) -> None:
    with pytest.raises(UsageError, match=f"{size} x {size} pixels"):
        decoders.decode_batch([encoded(photo(8, 8))], Resize(size), keys(1), np.empty((1, *shape), np.uint8))


def test_pixels_need_no_decoding() -> None:
    pixels = np.asarray(photo(32, 32))
    out = np.empty((2, 3, 32, 32), dtype=np.uint8)
    assert decoders.decode_batch([pixels, pixels[:, :, 0].copy()], Resize(32), keys(2), out) == {}
    assert (out[0].transpose(1, 2, 0) == pixels).all()
    assert (out[1] == pixels[None, :, :, 0]).all()


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "BMP"])
@pytest.mark.parametrize("upright", [False, True])
def test_encoded_images_may_be_anything_bytes_like(kind: str, upright: bool) -> None:
    data = encoded(photo(40, 24), kind)
    padded = b"head" + data + b"tail"
    array = np.frombuffer(data, np.uint8)
    views = [bytearray(data), memoryview(data), memoryview(padded)[4:-4], array, memoryview(array.view(np.int8))]
    pixels, problems = decode([data, *views], Resize(16), upright=upright)
    assert problems == {}
    assert (pixels == pixels[0]).all()
    sizes, problems = decoders.measure(views)
    assert sizes.tolist() == [[24, 40]] * len(views) and problems == {}
    assert {decoders.decode_rgb(view, upright=upright).tobytes() for view in [data, *views]} == {
        decoders.decode_rgb(data).tobytes()
    }


@pytest.mark.parametrize("wrong", [None, "text", memoryview(b"1234")[::2]])
def test_what_is_not_bytes_like_is_refused(wrong: object) -> None:
    out = np.empty((1, 8, 8, 3), np.uint8)
    for call in (decoders.decode_rgb, lambda picture: decoders.decode_batch([picture], Resize(8), keys(1), out)):
        with pytest.raises(TypeError):
            call(wrong)


def test_pillow_alone_gives_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the core is not built."""
    picture = kinds_of_images()["jpeg"]
    without_core(monkeypatch)
    pixels, problems = decode([picture], RandomResizedCrop(24, flip=True))
    assert problems == {}
    assert (pixels[0] == reference(picture, RandomResizedCrop(24, flip=True), keys(1))).all()


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_orientation_is_honoured_on_request_only(kind: str, orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    picture = encoded(photo(40, 24), kind, exif=exif)
    turned = decoders.decode_rgb(picture, upright=True)
    assert turned.size == ((24, 40) if orientation >= 5 else (40, 24))
    for upright in (False, True):
        pixels, problems = decode([picture], Resize((24, 40)), upright=upright)
        expected = decoders.decode_rgb(picture, upright=upright).resize((40, 24), Image.Resampling.BILINEAR)
        assert problems == {}
        assert np.abs(pixels[0].astype(int) - np.asarray(expected)).max() <= 3


def damaged_images() -> dict[str, bytes]:
    jpeg, png = encoded(photo(200, 200)), encoded(photo(200, 200), "PNG")
    huge = bytearray(encoded(photo(8, 8), "PNG"))
    huge[16:24] = b"\x00\x00\xff\xff" * 2
    bomb = bytearray(encoded(photo(8, 8), "BMP"))
    bomb[18:26] = b"\xff\xff\x00\x00" * 2
    return {
        "empty": b"",
        "no image": b"no image",
        "cut jpeg": jpeg[: len(jpeg) // 2],
        "jpeg without an end of its head": jpeg[:100],
        "only a start": b"\xff\xd8\xff",
        "cut png": png[: len(png) // 2],
        "png with a broken head": png[:20] + b"\xff" * 20 + png[40:],
        "png of 65535 x 65535": bytes(huge),
        "bmp of 65535 x 65535": bytes(bomb),
    }


@pytest.mark.parametrize("kind", damaged_images())
def test_damage_spoils_its_own_row_only(kind: str) -> None:
    good = encoded(photo(50, 40))
    bad = damaged_images()[kind]
    pixels, problems = decode([good, bad, good], Resize(16))
    assert list(problems) == [1]
    assert problems[1].startswith("the image")
    assert (pixels[1] == 0).all()
    assert (pixels[0] == pixels[2]).all() and pixels[0].any()
    with pytest.raises(DataError, match="cannot be decoded"):
        decoders.decode_rgb(bad)


@pytest.mark.parametrize("kind", ["PNG", "TIFF", "PPM"])
def test_grey_of_16_bits_is_scaled_and_never_clipped(kind: str) -> None:
    values = np.linspace(0, 4095, 40 * 40).astype(np.uint16).reshape(40, 40)
    picture = encoded(Image.fromarray(values), kind)
    for white in (4095, 65535):
        pixels, problems = decode([picture], CenterCrop(40, 40, white=white))
        assert problems == {}
        assert (pixels[0] == (values * (255 / white)).round()[..., None]).all()
    pixels, problems = decode([picture], Resize(40, white=4000))
    assert "grey values from 0 to 4095: expected 0 to 4000" in problems[0]
    assert (pixels == 0).all()


def test_grey_of_floats_or_below_zero_is_scaled_where_it_fits() -> None:
    def tiff(*values: float, dtype: str) -> bytes:
        return encoded(Image.fromarray(np.array([values], dtype=dtype)), "TIFF")

    good, negative, not_a_number = tiff(0, 1, 0.5, dtype="f4"), tiff(-1, 1, dtype="i4"), tiff(0, np.nan, dtype="f4")
    pixels, problems = decode([good, negative, not_a_number], Resize((1, 3), white=1))
    assert pixels[0, 0, :, 0].tolist() == [0, 255, 128]
    assert sorted(problems) == [1, 2] and "from -1 to 1" in problems[1] and "nan" in problems[2]
