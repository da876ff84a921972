"""Every back end of the processor makes the same bytes, those of the whole picture by libjpeg."""

from __future__ import annotations

import io
import random
import struct
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image

from dlio.native import _jpeg, crc32c, decode, decode_batch, make_crop_ready, to_planes
from tests.helpers.images import encoded
from tests.helpers.rounds import ROUNDS
from tests.native.jpegs import SUBSAMPLINGS, Box, crop, jpeg, picture, resized


@contextmanager
def _used(back_end: str) -> Iterator[None]:
    _jpeg.use_back_end(back_end)
    try:
        yield
    finally:
        _jpeg.use_back_end(_jpeg.BACK_ENDS[0])


def _window(data: bytes, box: Box, size: tuple[int, int], *, planar: bool = False, flip: bool = False) -> bytes:
    """Returns the status and the pixels of a box that was resized to `size`, height and width."""
    shape = (1, 3, *size) if planar else (1, *size, 3)
    out = np.full(shape, 7, np.uint8)
    status = decode_batch([data], np.array([box], np.int32), np.array([flip]), out)
    return bytes(status.tolist()) + out.tobytes()


def _by_each(data: bytes, box: Box, size: tuple[int, int], *, planar: bool = False, flip: bool = False) -> list[bytes]:
    made = []
    for back_end in _jpeg.BACK_ENDS:
        with _used(back_end):
            made.append(_window(data, box, size, planar=planar, flip=flip))
    return made


def _by_all(data: bytes, box: Box, size: tuple[int, int], *, planar: bool = False, flip: bool = False) -> bytes:
    """Returns what every back end makes of it."""
    made = _by_each(data, box, size, planar=planar, flip=flip)
    assert len(set(made)) == 1
    return made[0]


def test_the_names_are_known() -> None:
    assert _jpeg.BACK_ENDS[-1] == "portable" and set(_jpeg.BACK_ENDS) <= {"avx512", "avx2", "portable"}


@given(
    subsampling=st.sampled_from(SUBSAMPLINGS),
    kind=st.sampled_from(["plain", "restarts", "ready", "record"]),
    quality=st.sampled_from([1, 50, 90, 100]),
    width=st.integers(1, 260),
    height=st.integers(1, 90),
    planar=st.booleans(),
    flip=st.booleans(),
    data=st.data(),
)
def test_windows_of_every_kind(
    subsampling: str, kind: str, quality: int, width: int, height: int, planar: bool, flip: bool, data: st.DataObject
) -> None:
    source = jpeg(width, height, subsampling, quality=quality, restart=3 if kind == "restarts" else 0)
    made = {"ready": make_crop_ready, "record": to_planes}.get(kind, bytes)(source)
    assert made is not None
    left, top = data.draw(st.integers(0, width - 1)), data.draw(st.integers(0, height - 1))
    box = (left, top, data.draw(st.integers(1, width - left)), data.draw(st.integers(1, height - top)))
    size = (data.draw(st.integers(1, 40)), data.draw(st.integers(1, 70)))
    _by_all(made, box, size, planar=planar, flip=flip)
    expected = np.ascontiguousarray(crop(decode(source), box))
    assert _by_all(made, box, (box[3], box[2])) == b"\x00" + expected.tobytes()


@pytest.mark.parametrize("width", [90, 200, 1100, 4000])
@pytest.mark.parametrize("planar", [False, True])
def test_widths_that_shrink_much(width: int, planar: bool) -> None:
    """An output pixel of very many input pixels, and sixteen of them that lie far from each other."""
    source = jpeg(width, 70)
    for size in ((3, 5), (70, 17), (5, 100)):
        made = _by_all(source, (0, 0, width, 70), size, planar=planar)
        by_pillow = resized(decode(source), size[1], size[0])
        shape = (3, *size) if planar else (*size, 3)
        pixels = np.frombuffer(made, np.uint8, offset=1).reshape(shape)
        distance = (pixels.transpose(1, 2, 0) if planar else pixels).astype(int) - by_pillow
        assert np.abs(distance).max() <= 1  # Pillow takes the rows first now and then


@pytest.mark.parametrize("interpolation", [0, 1, 2])
def test_every_filter(interpolation: int) -> None:
    source = to_planes(jpeg(300, 200)) or b""
    parts = np.array([[3.25, 7.5, 190.125, 95.0]])
    made: list[NDArray[np.uint8]] = []
    for back_end in _jpeg.BACK_ENDS:
        with _used(back_end):
            out = np.zeros((1, 3, 61, 83), np.uint8)
            boxes = np.array([[20, 10, 250, 150]], np.int32)
            status = decode_batch([source], boxes, np.array([True]), out, parts, interpolation=interpolation)
            assert not status.any()
            made.append(out)
    assert all(np.array_equal(one, made[0]) for one in made)


def _with_steps(source: bytes, step: int) -> bytes:
    """Returns a JPEG whose quantisers all are `step`."""
    data = bytearray(source)
    at = 0
    while (at := data.find(b"\xff\xdb", at)) >= 0:
        end = at + 2 + struct.unpack_from(">H", data, at + 2)[0]
        for table in range(at + 4, end, 65):
            data[table + 1 : table + 65] = bytes([step]) * 64
        at = end
    return bytes(data)


@pytest.mark.parametrize("subsampling", SUBSAMPLINGS)
def test_coefficients_that_overflow(subsampling: str) -> None:
    """Blocks of one colour, and others next to them, whose numbers leave 16 bits: as libjpeg has it."""
    mode = "L" if subsampling == "grey" else "RGB"
    for shade in (0, 40, 200, 255):
        flat = Image.new("RGB", (200, 40), (shade, 255 - shade, shade))
        flat.paste(picture(40, 40), (60, 0))
        out = io.BytesIO()
        known = subsampling if subsampling in ("4:4:4", "4:2:2") else "4:2:0"
        flat.convert(mode).save(out, "JPEG", quality=100, subsampling=known)
        for step in (9, 70, 255):
            source = _with_steps(out.getvalue(), step)
            made = _by_all(source, (1, 0, 198, 40), (40, 198))
            assert made == b"\x00" + np.ascontiguousarray(decode(source)[:, 1:199]).tobytes()


@pytest.mark.parametrize("subsampling", SUBSAMPLINGS)
def test_damage_changes_no_other_pixels(subsampling: str) -> None:
    """Of records whose checksum fits, and of JPEGs: libjpeg also reads, and may refuse, what comes after the box."""
    random_ = random.Random(subsampling)
    source = jpeg(120, 40, subsampling)
    kinds = [to_planes(source) or b"", make_crop_ready(source), source]
    decoded = 0
    for _ in range(40 * ROUNDS):
        damaged = bytearray(random_.choice(kinds))
        for _ in range(random_.randint(1, 3)):
            damaged[random_.randrange(20, len(damaged))] = random_.choice((0, 255, random_.randrange(256)))
        if damaged[0] == 0x8A:
            damaged[-4:] = struct.pack("<I", crc32c(bytes(damaged[:-4])))
        *quick, portable = _by_each(bytes(damaged), (30, 3, 70, 30), (30, 70))
        assert len(set(quick)) <= 1 and (portable[0] > 0 or set(quick) <= {portable})
        decoded += portable[0] == 0
    assert 0 < decoded < 40 * ROUNDS


def test_a_table_that_is_not_sound_is_libjpegs_error() -> None:
    """Codes of all ones, which no table has: none of them is built."""
    source = bytearray(encoded(picture(64, 64), quality=90))
    table = source.index(b"\xff\xc4")
    source[table + 5 : table + 21] = bytes([2, *[0] * 15])
    assert _by_all(bytes(source), (0, 0, 64, 64), (9, 9))[0] != 0
