"""Pixels written as a JPEG: the same picture that Pillow writes, whatever the thread has written before."""

from __future__ import annotations

import io
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from PIL import Image

from dlio.errors import DataError
from dlio.native import decode, encode, make_crop_ready, probe
from tests.native.jpegs import jpeg

SIZES = [(1, 1), (1, 40), (17, 1), (16, 16), (33, 47), (300, 500)]
RGB = np.random.default_rng(0).integers(0, 256, (300, 500, 3), dtype=np.uint8)


def by_pillow(pixels: np.ndarray, quality: int) -> bytes:
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "JPEG", quality=quality)
    return out.getvalue()


@pytest.mark.parametrize("quality", [1, 50, 95, 100])
@pytest.mark.parametrize("size", SIZES)
def test_the_picture_is_that_of_pillow(size: tuple[int, int], quality: int) -> None:
    pixels = np.ascontiguousarray(RGB[: size[0], : size[1]])
    written = encode(pixels, quality)
    assert np.array_equal(decode(written), decode(by_pillow(pixels, quality)))
    told = probe(written)
    assert (told.height, told.width, told.subsampling, told.progressive, told.complete) == (*size, "4:2:0", False, True)


def test_nothing_is_left_of_what_was_written_before() -> None:
    fresh = encode(RGB, 90)
    make_crop_ready(jpeg(300, 200, "4:4:4"))  # its tables are its own, and it has restart intervals
    encode(RGB[:8], 10)
    assert encode(RGB, 90) == fresh


def test_threads_write_side_by_side() -> None:
    pictures = [np.ascontiguousarray(RGB[: 10 + 5 * i]) for i in range(40)]
    alone = [encode(picture, 80) for picture in pictures]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(encode, pictures, [80] * len(pictures))) == alone


@pytest.mark.parametrize(("shape", "message"), [
    ((0, 4, 3), "Empty"), ((4, 0, 3), "Empty"), ((1, 65_501, 3), "65501 x 1, a JPEG"), ((65_501, 1, 3), "1 x 65501")
])  # fmt: skip
def test_a_size_that_no_jpeg_has_is_refused(shape: tuple[int, int, int], message: str) -> None:
    with pytest.raises(DataError, match=message):
        encode(np.zeros(shape, np.uint8), 90)


@pytest.mark.parametrize(
    "pixels", [np.zeros((4, 4), np.uint8), np.zeros((4, 4, 4), np.uint8), np.zeros((4, 4, 3), np.float32)]
)
def test_other_arrays_are_refused(pixels: np.ndarray) -> None:
    with pytest.raises(ValueError, match=r"pixels: expected uint8 of shape \(height, width, 3\)"):
        encode(pixels, 90)


def test_other_qualities_and_objects_are_refused() -> None:
    for quality in (0, 101):
        with pytest.raises(ValueError, match="quality: expected 1 to 100"):
            encode(RGB, quality)
    with pytest.raises((ValueError, BufferError)):
        encode(RGB[:, ::2], 90)
    with pytest.raises(TypeError):
        encode("pixels", 90)  # type: ignore[arg-type]
