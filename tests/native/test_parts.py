"""decode_batch with parts: parts of a box that begin and end between pixels, as Pillow resizes them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from dlio.native import decode, decode_batch, make_crop_ready
from tests.native.jpegs import crop, jpeg

_SOURCES = [jpeg(150, 110, "4:2:0"), make_crop_ready(jpeg(150, 110, "4:2:0"))]
_PIXELS = decode(_SOURCES[0])


@given(data=st.data(), width=st.integers(1, 60), height=st.integers(1, 60), flip=st.booleans(), ready=st.booleans())
def test_near_to_pillow(data: st.DataObject, width: int, height: int, flip: bool, ready: bool) -> None:
    left, top = data.draw(st.integers(0, 140)), data.draw(st.integers(0, 100))
    box = (left, top, data.draw(st.integers(1, 150 - left)), data.draw(st.integers(1, 110 - top)))
    x, right = sorted(data.draw(st.tuples(*[st.floats(0, 1, width=16)] * 2)))
    y, bottom = sorted(data.draw(st.tuples(*[st.floats(0, 1, width=16)] * 2)))
    part = (x * box[2], y * box[3], (right - x) * box[2], (bottom - y) * box[3])
    out = np.zeros((1, height, width, 3), np.uint8)
    arrays = np.array([box], np.int32), np.array([flip]), out, np.array([part])
    status = decode_batch([_SOURCES[ready]], *arrays).tolist()
    if part[2] == 0 or part[3] == 0:
        assert status == [1]
        return
    corners = (part[0], part[1], min(part[0] + part[2], box[2]), min(part[1] + part[3], box[3]))
    image = Image.fromarray(crop(_PIXELS, box)).resize((width, height), Image.Resampling.BILINEAR, corners)
    expected = np.asarray(image)[:, ::-1] if flip else np.asarray(image)
    assert status == [0]
    difference = np.abs(out[0].astype(int) - expected)
    assert difference.max() <= 3 and difference.mean() <= 1


def test_all_of_a_box_is_the_box() -> None:
    boxes, flips = np.array([[3, 4, 90, 80]] * 2, np.int32), np.array([True, False])
    whole, parts = np.zeros((2, 3, 31, 47), np.uint8), np.zeros((2, 3, 31, 47), np.uint8)
    assert decode_batch(_SOURCES, boxes, flips, whole).tolist() == [0, 0]
    assert decode_batch(_SOURCES, boxes, flips, parts, np.array([[0.0, 0.0, 90.0, 80.0]] * 2)).tolist() == [0, 0]
    assert np.array_equal(whole, parts)


@pytest.mark.parametrize(
    "part",
    [
        (-0.01, 0, 5, 5),
        (0, -0.01, 5, 5),
        (0, 0, 0, 5),
        (0, 0, 5, -1),
        (86, 0, 5, 5),
        (0, 0, 5, 80.01),
        (float("nan"), 0, 5, 5),
        (0, 0, float("nan"), 5),
        (0, 0, 5, float("inf")),
        (1e308, 0, 1e308, 5),
    ],
)
def test_bad_parts(part: tuple[float, float, float, float]) -> None:
    boxes, out = np.array([[3, 4, 90, 80]] * 2, np.int32), np.full((2, 8, 8, 3), 7, np.uint8)
    assert decode_batch(_SOURCES, boxes, np.array([True, False]), out, np.array([part] * 2, float)).tolist() == [1, 1]
    assert (out == 7).all()


def test_wrong_arrays_are_refused() -> None:
    boxes, flips, out = np.array([[0, 0, 9, 9]] * 2, np.int32), np.zeros(2, bool), np.zeros((2, 8, 8, 3), np.uint8)
    with pytest.raises(TypeError, match=r"parts: expected dtype float64, found float32 \(2, 4\)"):
        decode_batch(_SOURCES, boxes, flips, out, boxes.astype(np.float32))
    with pytest.raises(ValueError, match=r"parts: .*\(2, 4\), found float64 \(1, 4\)"):
        decode_batch(_SOURCES, boxes, flips, out, boxes[:1].astype(float))
