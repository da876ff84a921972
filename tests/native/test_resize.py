"""The resize of decode_batch: Pillow's antialiased bilinear filter, in both layouts, mirrored on request."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlio.native import decode, decode_batch, make_crop_ready
from tests.native.jpegs import crop, jpeg, resized

_SOURCE = jpeg(300, 200, "4:4:4", quality=97)
_PIXELS = decode(_SOURCE)


def _run(box: tuple[int, int, int, int], flip: bool, out: np.ndarray) -> np.ndarray:
    status = decode_batch([_SOURCE], np.array([box], np.int32), np.array([flip]), out[None])
    assert status.tolist() == [0]
    return out


@given(data=st.data(), width=st.integers(1, 120), height=st.integers(1, 120), flip=st.booleans())
def test_near_to_pillow(data: st.DataObject, width: int, height: int, flip: bool) -> None:
    left, top = data.draw(st.integers(0, 299)), data.draw(st.integers(0, 199))
    box = (left, top, data.draw(st.integers(1, 300 - left)), data.draw(st.integers(1, 200 - top)))
    out = _run(box, flip, np.zeros((height, width, 3), np.uint8))
    expected = resized(crop(_PIXELS, box), width, height)
    difference = np.abs(out.astype(int) - (expected[:, ::-1] if flip else expected))
    assert difference.mean() <= 1
    assert difference.max() <= 3


def test_equal_to_pillow_for_a_usual_crop() -> None:
    box = (20, 10, 240, 180)
    out = _run(box, False, np.zeros((224, 224, 3), np.uint8))
    assert np.array_equal(out, resized(crop(_PIXELS, box), 224, 224))


@pytest.mark.parametrize("flip", [False, True])
@pytest.mark.parametrize(("width", "height"), [(224, 224), (31, 64), (1, 1), (4, 5), (7, 3)])
def test_layouts_hold_the_same_pixels(width: int, height: int, flip: bool) -> None:
    box = (5, 6, 250, 170)
    last = _run(box, flip, np.zeros((height, width, 3), np.uint8))
    first = _run(box, flip, np.zeros((3, height, width), np.uint8))
    assert np.array_equal(first.transpose(1, 2, 0), last)


def test_extreme_reduction() -> None:
    source = make_crop_ready(jpeg(4000, 40, "4:2:0"))
    out = np.zeros((1, 1, 2, 3), np.uint8)
    assert decode_batch([source], np.array([[0, 0, 4000, 40]], np.int32), np.array([False]), out).tolist() == [0]
    assert np.abs(out[0].astype(int) - resized(decode(source), 2, 1)).max() <= 1
