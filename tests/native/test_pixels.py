"""resize_batch: boxes of pixels that somebody else decoded, resized as decode_batch does those of JPEGs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from dlio.dataset.schema import MAX_PIXELS
from dlio.native import decode, decode_batch, make_crop_ready, resize_batch, to_planes
from tests.native.jpegs import crop, jpeg, resized

_JPEG = jpeg(150, 110)
_PIXELS = decode(_JPEG)
_GREY = jpeg(100, 70, "grey", quality=97)
_GREY_PIXELS = decode(_GREY)
_BOX = np.array([[20, 10, 90, 80]], np.int32)
_NOTHING = np.empty((0, 0, 3), np.uint8)


@given(data=st.data(), width=st.integers(1, 60), height=st.integers(1, 60), flip=st.booleans())
def test_near_to_pillow(data: st.DataObject, width: int, height: int, flip: bool) -> None:
    left, top = data.draw(st.integers(0, 149)), data.draw(st.integers(0, 109))
    box = (left, top, data.draw(st.integers(1, 150 - left)), data.draw(st.integers(1, 110 - top)))
    out = np.zeros((1, height, width, 3), np.uint8)
    assert resize_batch([_PIXELS], np.array([box], np.int32), np.array([flip]), out).tolist() == [0]
    expected = resized(crop(_PIXELS, box), width, height)
    assert np.abs(out[0].astype(int) - (expected[:, ::-1] if flip else expected)).max() <= 1


@given(data=st.data(), flip=st.booleans(), interpolation=st.integers(0, 2))
def test_grey_is_decoded_and_resized_to_the_same_bytes(data: st.DataObject, flip: bool, interpolation: int) -> None:
    """Its rows are resized three at a time: boxes begin and end at any of them."""
    left, top = data.draw(st.integers(0, 99)), data.draw(st.integers(0, 69))
    boxes = np.array([[left, top, data.draw(st.integers(1, 100 - left)), data.draw(st.integers(1, 70 - top))]])
    height, width = data.draw(st.integers(1, 90)), data.draw(st.integers(1, 90))
    for shape in ((height, width, 3), (3, height, width)):
        asked = boxes.astype(np.int32), np.array([flip])
        expected = np.zeros((1, *shape), np.uint8)
        assert resize_batch([_GREY_PIXELS], *asked, expected, interpolation=interpolation).tolist() == [0]
        for source in (_GREY, make_crop_ready(_GREY), to_planes(_GREY)):
            out = np.zeros((1, *shape), np.uint8)
            assert decode_batch([source], *asked, out, interpolation=interpolation).tolist() == [0]
            assert np.array_equal(out, expected)


@pytest.mark.parametrize("shape", [(40, 31, 3), (3, 40, 31)])
@pytest.mark.parametrize("part", [None, (10.5, 3.25, 60.0, 70.5), (11.0, 4.0, 31.0, 40.0)])  # the last is copied
def test_equal_to_the_decode_of_the_same_pixels(
    shape: tuple[int, int, int], part: tuple[float, float, float, float] | None
) -> None:
    parts = None if part is None else np.array([part] * 2)
    boxes, flips = np.repeat(_BOX, 2, 0), np.array([False, True])
    decoded, placed = np.zeros((2, *shape), np.uint8), np.zeros((2, *shape), np.uint8)
    assert decode_batch([_JPEG] * 2, boxes, flips, decoded, parts).tolist() == [0, 0]
    assert resize_batch([_PIXELS] * 2, boxes, flips, placed, parts).tolist() == [0, 0]
    assert decoded.any() and np.array_equal(placed, decoded)


def test_a_box_of_the_same_size_is_copied() -> None:
    out = np.zeros((1, 80, 90, 3), np.uint8)
    assert resize_batch([_PIXELS], _BOX, np.array([False]), out).tolist() == [0]
    assert np.array_equal(out[0], _PIXELS[10:90, 20:110])


@pytest.mark.parametrize("shape", [(24, 28, 3), (3, 24, 28)])
def test_one_array_is_resized_as_its_images(shape: tuple[int, int, int]) -> None:
    images = np.random.default_rng(5).integers(0, 256, (3, 32, 40, 3), np.uint8)
    boxes = np.array([(0, 0, 40, 32), (3, 2, 28, 24), (12, 8, 20, 9)], np.int32)
    flips = np.array([True, True, False])
    one, many = np.zeros((3, *shape), np.uint8), np.zeros((3, *shape), np.uint8)
    assert resize_batch(images, boxes, flips, one).tolist() == resize_batch(list(images), boxes, flips, many).tolist()
    assert np.array_equal(one, many)
    with pytest.raises(ValueError, match=r"\(n, height, width, 3\)"):
        resize_batch(images[..., :2].copy(), boxes, flips, one)


@pytest.mark.parametrize("planar", [False, True])
@pytest.mark.parametrize("flip", [False, True])
def test_every_width_is_copied(flip: bool, planar: bool) -> None:
    images = np.random.default_rng(6).integers(0, 256, (1, 5, 80, 3), np.uint8)
    for width in range(1, 80):
        out = np.full((1, 3, 4, 82) if planar else (1, 4, 82, 3), 7, np.uint8)
        place = np.array([(1, 1, width, 3)], np.int32)
        box = np.array([(1, 1, width, 3)], np.int32)
        assert resize_batch(images, box, np.array([flip]), out, None, place).tolist() == [0]
        found = out.transpose(0, 2, 3, 1) if planar else out
        copied = images[:, 1:4, 1 : width + 1]
        assert np.array_equal(found[:, 1:, 1 : width + 1], copied[:, :, ::-1] if flip else copied)
        assert (found[:, 0] == 7).all() and (found[:, :, 0] == 7).all() and (found[:, :, width + 1 :] == 7).all()


def test_without_pixels_or_box_the_output_stays() -> None:
    boxes = np.array([_BOX[0], _BOX[0], (61, 0, 90, 80), (0, -1, 5, 5), _BOX[0]], np.int32)
    out = np.full((5, 16, 16, 3), 7, np.uint8)
    images = [_PIXELS, _NOTHING, _PIXELS, _PIXELS, _PIXELS]
    assert resize_batch(images, boxes, np.zeros(5, bool), out).tolist() == [0, 1, 1, 1, 0]
    assert (out[1:4] == 7).all() and np.array_equal(out[0], out[4])


def test_more_pixels_than_a_jpeg_may_have_are_refused() -> None:
    many = np.zeros((1, MAX_PIXELS + 1, 3), np.uint8)  # of memory that nobody touches
    out = np.full((1, 16, 16, 3), 7, np.uint8)
    assert resize_batch([many], np.array([[0, 0, 1, 1]], np.int32), np.zeros(1, bool), out).tolist() == [6]
    assert resize_batch([many[:, :-1]], np.array([[0, 0, 1, 1]], np.int32), np.zeros(1, bool), out).tolist() == [0]


@pytest.mark.parametrize(
    "buffer",
    [memoryview(_PIXELS), memoryview(bytes(_PIXELS)).cast("B", _PIXELS.shape), np.asfortranarray(_PIXELS).copy("C")],
    ids=["memoryview", "cast", "array"],
)
def test_any_buffer_of_this_shape_will_do(buffer: object) -> None:
    out = np.zeros((2, 16, 16, 3), np.uint8)
    assert resize_batch([_PIXELS, buffer], np.repeat(_BOX, 2, 0), np.zeros(2, bool), out).tolist() == [0, 0]
    assert np.array_equal(out[0], out[1])


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        (None, TypeError),
        (Image.fromarray(_PIXELS), TypeError),
        (_PIXELS[:, ::2], (ValueError, BufferError)),
        (_PIXELS[:, :, 0].copy(), ValueError),
        (_PIXELS[:, :, :2].copy(), ValueError),
        (_PIXELS.view(np.int8), ValueError),
        (_PIXELS.astype(np.float32), ValueError),
        (bytes(300), ValueError),
    ],
)
def test_what_is_no_picture_is_refused_before_anything_is_resized(wrong: object, error: type[Exception]) -> None:
    out = np.full((2, 16, 16, 3), 7, np.uint8)
    with pytest.raises(error):
        resize_batch([_PIXELS, wrong], np.repeat(_BOX, 2, 0), np.zeros(2, bool), out)
    assert (out == 7).all()
