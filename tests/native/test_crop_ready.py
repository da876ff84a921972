"""make_crop_ready: the same picture, in a form that windows can be cut from; otherwise the same bytes."""

from __future__ import annotations

import io
import shutil
import subprocess

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from dlio.native import decode, make_crop_ready, probe
from tests.helpers.images import encoded
from tests.native.jpegs import ARITHMETIC, SEPARATE_SCANS, SUBSAMPLINGS, jpeg, of_12_bits, picture


@given(
    width=st.integers(1, 150),
    height=st.integers(1, 150),
    subsampling=st.sampled_from(SUBSAMPLINGS),
    progressive=st.booleans(),
    restart=st.sampled_from([0, 1, 3]),
)
def test_pixels_stay_equal(width: int, height: int, subsampling: str, progressive: bool, restart: int) -> None:
    source = jpeg(width, height, subsampling, progressive=progressive, restart=restart)
    ready = make_crop_ready(source)
    assert np.array_equal(decode(ready), decode(source))
    assert make_crop_ready(ready) == ready


@pytest.mark.parametrize("subsampling", SUBSAMPLINGS)
@pytest.mark.parametrize("progressive", [False, True])
def test_result_is_baseline_and_crop_ready(subsampling: str, progressive: bool) -> None:
    ready = make_crop_ready(jpeg(200, 100, subsampling, progressive=progressive))
    after = probe(ready)
    assert (after.crop_ready, after.progressive, after.width, after.height) == (True, False, 200, 100)
    assert b"\xff\xc0" in ready


@pytest.mark.parametrize(
    ("subsampling", "width", "interval"),
    [("4:2:0", 500, 4), ("4:2:0", 375, 4), ("4:2:0", 333, 3), ("4:4:4", 500, 9), ("4:2:0", 496, 1), ("4:2:0", 9, 1)],
)
def test_interval_divides_the_row_and_is_nearest_to_64_pixels(subsampling: str, width: int, interval: int) -> None:
    ready = make_crop_ready(jpeg(width, 60, subsampling))
    at = ready.index(b"\xff\xdd")
    assert int.from_bytes(ready[at + 4 : at + 6], "big") == interval


@pytest.mark.skipif(not shutil.which("jpegtran"), reason="compares with libjpeg-turbo's own jpegtran")
@pytest.mark.parametrize("subsampling", ["4:4:4", "4:2:2", "4:2:0", "4:4:0"])
@pytest.mark.parametrize("progressive", [False, True])
def test_same_bytes_as_jpegtran(subsampling: str, progressive: bool) -> None:
    source = jpeg(200, 100, subsampling, progressive=progressive)
    ready = make_crop_ready(source)
    at = ready.index(b"\xff\xdd")
    interval = int.from_bytes(ready[at + 4 : at + 6], "big")
    command = ["jpegtran", "-copy", "all", "-optimize", "-restart", f"{interval}B"]
    assert subprocess.run(command, input=source, capture_output=True, check=True).stdout == ready


def test_metadata_is_kept() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    profile = bytes(range(256)) * 300  # more than one APP2 segment holds
    source = encoded(picture(200, 100), exif=exif, icc_profile=profile, comment=b"a comment", dpi=(72, 72))
    ready = make_crop_ready(source)
    assert ready != source
    with Image.open(io.BytesIO(ready)) as image:
        assert image.info["icc_profile"] == profile
        assert image.getexif()[0x0112] == 6
        assert image.info["comment"] == b"a comment"
        assert image.info["dpi"] == (72, 72)
    assert probe(source).orientation == probe(ready).orientation == 6


def test_colours_of_an_rgb_jpeg_are_kept() -> None:
    source = encoded(picture(100, 80), keep_rgb=True, quality=90)
    ready = make_crop_ready(source)
    assert probe(ready).crop_ready
    assert np.array_equal(decode(ready), decode(source))


def test_late_segments_do_not_change_colours() -> None:
    """Found by fuzzing: a JFIF segment after the scan of an RGB JPEG says nothing, before the scan it says YCbCr."""
    source = encoded(picture(100, 80), keep_rgb=True, quality=90)
    jfif = jpeg(8, 8)[2:20]
    late = source[:-2] + jfif + source[-2:]
    assert np.array_equal(decode(late), decode(source))
    ready = make_crop_ready(late)
    assert probe(ready).crop_ready
    assert np.array_equal(decode(ready), decode(source))


def test_scans_are_joined() -> None:
    ready = make_crop_ready(SEPARATE_SCANS)
    assert (SEPARATE_SCANS.count(b"\xff\xda"), ready.count(b"\xff\xda")) == (3, 1)
    assert probe(ready).crop_ready and np.array_equal(decode(ready), decode(SEPARATE_SCANS))


def _incomplete_progressive() -> bytes:
    """Returns a progressive JPEG that ends, in good order, after its second scan: decoders smooth it."""
    source = jpeg(200, 100, "4:2:0", progressive=True)
    third_scan = [at for at in range(len(source)) if source[at : at + 2] == b"\xff\xda"][2]
    tables = source.rindex(b"\xff\xc4", 0, third_scan)
    return source[:tables] + b"\xff\xd9"


@pytest.mark.parametrize(
    "kept",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"GIF89a and more", id="no JPEG"),
        pytest.param(jpeg(200, 100)[:-900], id="truncated"),
        pytest.param(jpeg(200, 100)[:100], id="headers only"),
        pytest.param(encoded(picture(200, 100).convert("CMYK")), id="CMYK"),
        pytest.param(of_12_bits(jpeg(200, 100)), id="12 bit"),
        pytest.param(ARITHMETIC, id="arithmetic"),
        pytest.param(jpeg(16, 16), id="one interval"),
        pytest.param(_incomplete_progressive(), id="incomplete progressive"),
        pytest.param(make_crop_ready(jpeg(200, 100)), id="crop-ready"),
    ],
)
def test_returned_unchanged(kept: bytes) -> None:
    assert make_crop_ready(kept) == kept


def test_any_buffer_is_taken() -> None:
    source = jpeg(100, 100)
    ready = make_crop_ready(source)
    assert make_crop_ready(memoryview(source)) == make_crop_ready(bytearray(source)) == ready
    assert make_crop_ready(np.frombuffer(ready, np.uint8)) == ready
    with pytest.raises(TypeError):
        make_crop_ready("text")  # type: ignore[arg-type]


def test_a_rewritten_file_may_exceed_the_kept_memory() -> None:
    source = jpeg(200, 100)
    comments = 1100 * (b"\xff\xfe\xff\xff" + bytes(65533))
    rewritten = make_crop_ready(source[:2] + comments + source[2:])
    assert len(rewritten) > 64 << 20 and probe(rewritten).crop_ready
    assert np.array_equal(decode(rewritten), decode(source))
    assert make_crop_ready(rewritten) == rewritten
