"""Windows: a box decoded alone has the pixels that it has in the whole image."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from dlio.native import decode, decode_batch, make_crop_ready, probe
from tests.native.jpegs import SUBSAMPLINGS, Box, crop, jpeg


def decode_box(data: bytes, box: Box) -> NDArray[np.uint8]:
    """Returns the box's pixels, in their own size."""
    out = np.zeros((1, box[3], box[2], 3), np.uint8)
    status = decode_batch([data], np.array([box], np.int32), np.array([False]), out)
    assert status.tolist() == [0]
    return out[0]


@st.composite
def sizes_and_boxes(draw: st.DrawFn) -> tuple[int, int, Box]:
    width, height = draw(st.integers(1, 180)), draw(st.integers(1, 120))
    left, top = draw(st.integers(0, width - 1)), draw(st.integers(0, height - 1))
    return width, height, (left, top, draw(st.integers(1, width - left)), draw(st.integers(1, height - top)))


@given(
    case=sizes_and_boxes(),
    subsampling=st.sampled_from(SUBSAMPLINGS),
    progressive=st.booleans(),
    restart=st.sampled_from([0, 0, 2]),
    ready=st.booleans(),
)
def test_box_equals_the_crop_of_the_whole(
    case: tuple[int, int, Box], subsampling: str, progressive: bool, restart: int, ready: bool
) -> None:
    width, height, box = case
    source = jpeg(width, height, subsampling, progressive=progressive, restart=restart)
    data = make_crop_ready(source) if ready else source
    assert np.array_equal(decode_box(data, box), crop(decode(source), box))


@pytest.mark.parametrize("subsampling", SUBSAMPLINGS)
@pytest.mark.parametrize("width", [16, 17, 18, 20, 64, 65, 66, 69, 128, 129, 130, 160])
def test_narrow_boxes_at_every_column(subsampling: str, width: int) -> None:
    """One pixel decides: libjpeg upsamples rows of less than 3 samples of chroma in another way."""
    source = jpeg(width, 33, subsampling)
    ready = make_crop_ready(source)
    whole = decode(source)
    for left in range(width):
        box = (left, left % 33, 1, 1)
        assert np.array_equal(decode_box(ready, box), crop(whole, box)), box
        assert np.array_equal(decode_box(source, box), crop(whole, box)), box


def test_only_the_window_is_read() -> None:
    ready = make_crop_ready(jpeg(512, 512))
    assert probe(ready).crop_ready
    box = (300, 300, 64, 64)
    whole = crop(decode(ready), box)
    scan = ready.index(b"\xff\xda") + 14
    damaged = bytearray(ready)
    for at in range(scan, scan + 2000):  # far above the window: bits are turned, markers stay
        if damaged[at] < 0xF0 and damaged[at - 1] != 0xFF:
            damaged[at] ^= 0x05
    assert np.array_equal(decode_box(bytes(damaged), box), whole)
    everything = np.zeros((1, 512, 512, 3), np.uint8)
    status = decode_batch([bytes(damaged)], np.array([[0, 0, 512, 512]], np.int32), np.array([False]), everything)
    assert status.any() or not np.array_equal(everything[0], decode(ready)), "the damage matters where it is read"
