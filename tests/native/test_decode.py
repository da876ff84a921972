"""decode, decode_batch, measure and probe: values, statuses, messages, arguments."""

from __future__ import annotations

import io
import mmap
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from PIL import Image

from dlio import native
from dlio.errors import DataError
from dlio.native import decode, decode_batch, make_crop_ready, measure, probe, status_message
from tests.helpers.images import encoded
from tests.native.jpegs import ARITHMETIC, SEPARATE_SCANS, SUBSAMPLINGS, crop, jpeg, of_12_bits, picture


def as_memory_map(data: bytes) -> mmap.mmap:
    """Returns the bytes as memory of this process that is mapped."""
    mapped = mmap.mmap(-1, len(data))
    mapped[:] = data
    return mapped


_BOX = np.array([[0, 0, 50, 40]], np.int32)
_NO_FLIP = np.array([False])


@pytest.mark.parametrize("subsampling", SUBSAMPLINGS)
@pytest.mark.parametrize("progressive", [False, True])
@pytest.mark.parametrize(("width", "height"), [(1, 1), (3, 2), (17, 33), (200, 100)])
def test_decode_equals_pillow(subsampling: str, progressive: bool, width: int, height: int) -> None:
    data = jpeg(width, height, subsampling, progressive=progressive)
    with Image.open(io.BytesIO(data)) as image:
        assert np.array_equal(decode(data), np.asarray(image.convert("RGB")))


@pytest.mark.parametrize("data", [ARITHMETIC, SEPARATE_SCANS], ids=["arithmetic", "a scan for each component"])
def test_kinds_that_pillow_does_not_write(data: bytes) -> None:
    whole = decode(data)
    with Image.open(io.BytesIO(data)) as image:
        assert np.array_equal(whole, np.asarray(image))
    box, out = (7, 5, 21, 19), np.zeros((1, 19, 21, 3), np.uint8)
    assert decode_batch([data], np.array([box], np.int32), _NO_FLIP, out).tolist() == [0]
    assert np.array_equal(out[0], crop(whole, box))


_KINDS = {
    "bytearray": bytearray,
    "memoryview": memoryview,
    "read-only memoryview of a bytearray": lambda data: memoryview(bytearray(data)).toreadonly(),
    "slice": lambda data: memoryview(b"a" + data + b"b")[1:-1],
    "read-only array": lambda data: np.frombuffer(data, np.uint8),
    "array": lambda data: np.frombuffer(data, np.uint8).copy(),
    "memory map": as_memory_map,
}


@pytest.mark.parametrize("kind", _KINDS)
def test_any_buffer_is_read_as_bytes_are(kind: str) -> None:
    plain, ready = jpeg(200, 100), make_crop_ready(jpeg(200, 100))
    for data in (plain, ready):
        buffer = _KINDS[kind](data)
        assert np.array_equal(decode(buffer), decode(data))
        assert repr(probe(buffer)) == repr(probe(data))
        assert make_crop_ready(buffer) == ready
        out = np.zeros((2, 40, 50, 3), np.uint8)
        assert decode_batch([data, buffer], np.repeat(_BOX, 2, 0), np.zeros(2, bool), out).tolist() == [0, 0]
        assert out[0].any() and np.array_equal(out[0], out[1])


@pytest.mark.parametrize("wrong", [None, "text", memoryview(b"1234")[::2], np.zeros(8, np.uint8)[::2]])
def test_other_than_contiguous_buffers_are_refused_before_decoding(wrong: object) -> None:
    out = np.full((2, 40, 50, 3), 7, np.uint8)
    with pytest.raises((TypeError, BufferError, ValueError)):
        decode_batch([jpeg(200, 100), wrong], np.repeat(_BOX, 2, 0), np.zeros(2, bool), out)
    assert (out == 7).all()


def test_buffers_are_held_while_they_are_decoded() -> None:
    data = bytearray(jpeg(1200, 900))
    boxes, out = np.array([[0, 0, 1200, 900]] * 40, np.int32), np.empty((40, 40, 50, 3), np.uint8)
    held = False
    with ThreadPoolExecutor(1) as pool:
        run = pool.submit(decode_batch, [data] * 40, boxes, np.zeros(40, bool), out)
        while not (held or run.done()):
            try:
                data.append(0)
                data.pop()
            except BufferError:
                held = True
        assert run.result().tolist() == [0] * 40
    assert held
    data.append(0)  # and let go afterwards


def test_grey_fills_three_equal_channels() -> None:
    pixels = decode(jpeg(60, 50, "grey"))
    assert pixels.shape == (50, 60, 3)
    assert np.array_equal(pixels[..., 0], pixels[..., 1])
    assert np.array_equal(pixels[..., 0], pixels[..., 2])


@pytest.mark.parametrize("subsampling", SUBSAMPLINGS)
def test_probe(subsampling: str) -> None:
    found = probe(jpeg(60, 50, subsampling))
    assert (found.width, found.height, found.subsampling) == (60, 50, subsampling)
    assert found.components == (1 if subsampling == "grey" else 3)
    assert (found.progressive, found.crop_ready, found.orientation) == (False, False, 1)
    assert probe(jpeg(60, 50, "4:2:0", progressive=True)).progressive
    assert repr(found).startswith("Probe(width=60, height=50,")


def test_measure_tells_the_sizes_of_whole_jpegs_only() -> None:
    good = [jpeg(60, 50, kind, progressive=progressive) for kind in SUBSAMPLINGS for progressive in (False, True)]
    bad = [b"", b"no jpeg", good[0][:-2], good[0][:30]]
    sizes = measure([*good, *bad, memoryview(good[0])])
    assert sizes.dtype == np.int64
    assert sizes.tolist() == [[50, 60]] * len(good) + [[0, 0]] * len(bad) + [[50, 60]]
    assert measure([]).shape == (0, 2)
    for wrong, error in (([None], TypeError), ((good[0],), TypeError), ([memoryview(b"1234")[::2]], BufferError)):
        with pytest.raises(error):
            measure(wrong)


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_probe_finds_the_orientation_in_both_byte_orders(order: str, orientation: int) -> None:
    exif = Image.Exif()
    exif.endian = order
    exif[0x010F] = "maker"
    exif[0x0112] = orientation
    assert probe(encoded(picture(60, 50), exif=exif)).orientation == orientation


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "Empty input file"),
        (b"GIF89a", "Not a JPEG file: starts with 0x47 0x49"),
        (b"\xff\xd8", "Premature end of JPEG file"),
        (jpeg(200, 100)[:-900], "Premature end of JPEG file"),
        (encoded(picture(50, 40).convert("CMYK")), "leaves to Pillow .*: 4 components"),
        (of_12_bits(jpeg(50, 40)), "leaves to Pillow"),
    ],
)
def test_decode_raises_with_the_message(data: bytes, message: str) -> None:
    with pytest.raises(DataError, match=message):
        decode(data)


def test_a_bad_image_has_a_status_and_spoils_nothing() -> None:
    good = jpeg(60, 50)
    large = bytearray(good)
    frame = large.index(b"\xff\xc0")
    large[frame + 5 : frame + 9] = b"\xff\xdc\xff\xdc"
    buffers = [good, good, b"no", good[:200], good[:-500], encoded(picture(50, 40).convert("CMYK")), bytes(large), good]
    boxes = np.array([[0, 0, 50, 40]] * len(buffers), np.int32)
    boxes[1] = (20, 0, 50, 40)
    out = np.full((len(buffers), 40, 50, 3), 7, np.uint8)
    status = decode_batch(buffers, boxes, np.zeros(len(buffers), bool), out)
    assert status.dtype == np.int32
    assert status.tolist() == [0, 1, 2, 4, 4, 5, 6, 0]
    assert np.array_equal(out[0], decode(good)[:40, :50])
    assert np.array_equal(out[7], out[0])
    assert (out[1:7] == 7).all(), "a failed image leaves its place as it was"


@pytest.mark.parametrize("ready", [False, True])
@pytest.mark.parametrize(
    "box",
    [
        (0, 0, 0, 5),
        (0, 0, 5, 0),
        (-1, 0, 5, 5),
        (0, -1, 5, 5),
        (0, 0, -5, 5),
        (56, 0, 5, 5),
        (0, 46, 5, 5),
        (2**31 - 1, 0, 2**31 - 1, 1),
        (0, 2**31 - 1, 1, 2**31 - 1),
        (-(2**31), 0, 2**31 - 1, 5),
    ],
)
def test_bad_boxes(box: tuple[int, int, int, int], ready: bool) -> None:
    data = make_crop_ready(jpeg(60, 50)) if ready else jpeg(60, 50)
    out = np.zeros((1, 8, 8, 3), np.uint8)
    assert decode_batch([data], np.array([box], np.int32), _NO_FLIP, out).tolist() == [1]


def test_every_status_has_a_message() -> None:
    messages = [status_message(status) for status in range(8)]
    assert len(set(messages)) == 8
    with pytest.raises(ValueError, match="no status of decode_batch: 8"):
        status_message(8)


@pytest.mark.parametrize(
    ("boxes", "flips", "out", "error", "message"),
    [
        (_BOX.astype(np.int64), _NO_FLIP, np.zeros((1, 8, 8, 3), np.uint8), TypeError, "boxes: expected dtype int32"),
        (_BOX[:, :3].copy(), _NO_FLIP, np.zeros((1, 8, 8, 3), np.uint8), ValueError, r"boxes: .*\(1, 4\)"),
        (_BOX, np.zeros(1, np.uint8), np.zeros((1, 8, 8, 3), np.uint8), TypeError, "flips: expected dtype bool"),
        (_BOX, np.zeros(2, bool), np.zeros((1, 8, 8, 3), np.uint8), ValueError, r"flips: .*\(1,\)"),
        (_BOX, _NO_FLIP, np.zeros((1, 8, 8, 3), np.float32), TypeError, "out: expected dtype uint8"),
        (_BOX, _NO_FLIP, np.zeros((2, 8, 8, 3), np.uint8), ValueError, r"out: .*\(1, H, W, 3\)"),
        (_BOX, _NO_FLIP, np.zeros((1, 8, 8, 4), np.uint8), ValueError, "out: "),
        (_BOX, _NO_FLIP, np.zeros((1, 0, 8, 3), np.uint8), ValueError, "out: "),
        (_BOX, _NO_FLIP, np.zeros((1, 8, 16, 3), np.uint8)[:, :, ::2], ValueError, "out: .*C-contiguous"),
    ],
)
def test_wrong_arrays_are_refused(
    boxes: np.ndarray, flips: np.ndarray, out: np.ndarray, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        decode_batch([jpeg(60, 50)], boxes, flips, out)


def test_read_only_output_and_wrong_buffers_are_refused() -> None:
    out = np.zeros((1, 8, 8, 3), np.uint8)
    with pytest.raises(TypeError):
        decode_batch(["text"], _BOX, _NO_FLIP, out)
    out.flags.writeable = False
    with pytest.raises(TypeError):
        decode_batch([jpeg(60, 50)], _BOX, _NO_FLIP, out)


def test_empty_batch() -> None:
    out = np.zeros((0, 8, 8, 3), np.uint8)
    assert decode_batch([], np.zeros((0, 4), np.int32), np.zeros(0, bool), out).shape == (0,)


def test_threads_do_not_disturb_each_other() -> None:
    sources = [jpeg(40 + 7 * i, 90 - 3 * i, SUBSAMPLINGS[i % 6], progressive=i % 4 == 3) for i in range(12)]
    expected = [(make_crop_ready(source), decode(source)) for source in sources]

    def work(number: int) -> None:
        for step in range(60):
            ready, pixels = expected[(number + step) % len(expected)]
            height, width, _ = pixels.shape
            out = np.zeros((1, height, width, 3), np.uint8)
            assert decode_batch([ready], np.array([[0, 0, width, height]], np.int32), _NO_FLIP, out).tolist() == [0]
            assert np.array_equal(out[0], pixels)
            assert make_crop_ready(sources[(number + step) % len(expected)]) == ready

    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(work, number) for number in range(4)]:
            done.result()


def test_without_the_core_each_name_says_what_is_missing() -> None:
    assert native.available
    script = (
        "import sys; sys.modules['dlio.native._core'] = None\n"
        "from dlio import errors, native\n"
        "assert (native.available, native.decodes_jpeg, native.decodes_png) == (False, False, False)\n"
        "assert native.crc32c(b'456789', native.crc32c(b'123')) == 0xE3069283\n"
        "try: native.decode\n"
        "except errors.MissingPackageError as error: sys.exit('apt-get install' not in str(error))\n"
        "sys.exit(2)"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
