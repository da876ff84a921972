"""Hostile JPEGs: a status or an exception, the same for every caller, in bounded time and memory."""

from __future__ import annotations

import random

import numpy as np
import pytest

from dlio.errors import DataError
from dlio.native import decode, decode_batch, make_crop_ready, probe
from tests.helpers.rounds import ROUNDS
from tests.native.jpegs import SEPARATE_SCANS, SUBSAMPLINGS, crop, jpeg

_READY = make_crop_ready(jpeg(256, 128))


def _status(data: bytes, box: tuple[int, int, int, int] = (70, 40, 60, 30)) -> tuple[int, np.ndarray]:
    out = np.zeros((1, box[3], box[2], 3), np.uint8)
    status = decode_batch([data], np.array([box], np.int32), np.array([False]), out)
    return int(status[0]), out[0]


def _markers(data: bytes) -> list[int]:
    """Returns where the restart markers stand."""
    return [at for at in range(len(data) - 1) if data[at] == 0xFF and 0xD0 <= data[at + 1] <= 0xD7]


def _without(data: bytes, at: int) -> bytes:
    return data[:at] + data[at + 2 :]


def _exchanged(data: bytes, at: int, marker: int) -> bytes:
    return data[: at + 1] + bytes([marker]) + data[at + 2 :]


def test_more_than_100_scans_are_refused() -> None:
    first, second = [at for at in range(len(SEPARATE_SCANS)) if SEPARATE_SCANS[at : at + 2] == b"\xff\xda"][:2]
    data = {scans: SEPARATE_SCANS[:first] + (scans - 2) * SEPARATE_SCANS[first:second] + SEPARATE_SCANS[second:]
            for scans in (100, 101)}  # fmt: skip
    assert np.array_equal(decode(data[100]), decode(SEPARATE_SCANS))
    with pytest.raises(DataError, match="more than 100 scans"):
        decode(data[101])
    assert _status(data[101], (0, 0, 40, 33))[0] == 6
    assert make_crop_ready(data[101]) == data[101]


@pytest.mark.parametrize(
    "lie",
    [
        pytest.param(_without(_READY, _markers(_READY)[0]), id="first marker missing"),
        pytest.param(_without(_READY, _markers(_READY)[-1]), id="last marker missing"),
        pytest.param(_exchanged(_READY, _markers(_READY)[3], 0xD5), id="marker out of turn"),
        pytest.param(_exchanged(_READY, _markers(_READY)[3], 0xC4), id="other marker in the scan"),
        pytest.param(_READY.replace(b"\xff\xd9", b"\xff\xd0\xff\xd9"), id="marker too many"),
        pytest.param(_READY.replace(b"\xff\xdd\x00\x04\x00\x04", b"\xff\xdd\x00\x04\x00\x02"), id="interval too small"),
        pytest.param(_READY.replace(b"\xff\xdd\x00\x04\x00\x04", b"\xff\xdd\x00\x04\x00\x10"), id="interval too large"),
        pytest.param(_READY.replace(b"\xff\xdd\x00\x04\x00\x04", b"\xff\xdd\x00\x04\xff\xff"), id="interval huge"),
        pytest.param(_READY.replace(b"\xff\xdd\x00\x04\x00\x04", b"\xff\xdd\x00\x04\x00\x00"), id="interval nothing"),
        pytest.param(_READY[: _markers(_READY)[9]], id="cut at a marker"),
        pytest.param(_READY[: _markers(_READY)[9] + 1], id="cut within a marker"),
    ],
)
def test_markers_that_lie(lie: bytes) -> None:
    assert lie != _READY
    assert not probe(lie).crop_ready
    ready = make_crop_ready(lie)
    assert ready == lie or np.array_equal(decode(ready), decode(_READY)), "kept, or put right"
    status, pixels = _status(lie)
    if status == 0:  # libjpeg found nothing wrong as far as the box reaches
        assert np.array_equal(pixels, crop(decode(_READY), (70, 40, 60, 30)))
    else:
        assert status == 4


def test_an_interval_without_its_data_is_damaged() -> None:
    """The markers are right, and so the file passes for crop-ready, but one interval within the box is short."""
    starts = _markers(_READY)
    short = _READY[: starts[9] + 40] + _READY[starts[10] :]
    assert probe(short).crop_ready
    assert _status(short, (64, 32, 190, 90))[0] == 4
    with pytest.raises(DataError, match="Corrupt JPEG data"):
        decode(short)


@pytest.mark.parametrize("subsampling", SUBSAMPLINGS)
def test_a_code_that_does_not_exist_is_damage(subsampling: str) -> None:
    """Without restarts, too, where libjpeg's own decoder takes it for a zero and says nothing."""
    data = jpeg(200, 100, subsampling)
    middle = (data.index(b"\xff\xda") + len(data)) // 2
    ones = data[:middle] + b"\xff\x00\xff\x00\xff\x00" + data[middle + 6 :]
    assert _status(ones, (0, 0, 200, 100))[0] == 4
    with pytest.raises(DataError, match="bad Huffman code"):
        decode(ones)
    assert _status(ones, (0, 0, 200, 8))[0] == 0, "a box above the damage"


def test_header_that_claims_more_than_the_file_can_hold() -> None:
    bomb = bytearray(jpeg(16, 16))
    frame = bomb.index(b"\xff\xc0")
    bomb[frame + 5 : frame + 9] = b"\x30\x00\x30\x00"  # 12288 x 12288 in a few hundred bytes
    assert probe(jpeg(16, 16)).width == 16
    assert _status(bytes(bomb))[0] == 4
    for call in (decode, probe):
        with pytest.raises(DataError, match="12288 x 12288 pixels cannot be coded in"):
            call(bytes(bomb))


def test_more_scans_than_any_encoder_writes() -> None:
    source = jpeg(64, 64, "4:2:0", progressive=True)
    last_scan = source.rindex(b"\xff\xda")
    tables = source.rindex(b"\xff\xc4", 0, last_scan)
    bomb = source[:-2] + source[tables:-2] * 200 + b"\xff\xd9"
    assert _status(bomb, (0, 0, 64, 64))[0] in (4, 6)
    assert make_crop_ready(bomb) == bomb
    with pytest.raises(DataError):
        decode(bomb)


def test_tables_of_the_image_before_are_gone() -> None:
    """A JPEG without Huffman tables decodes with the standard ones, whatever this thread decoded before."""
    standard = jpeg(64, 64, "4:2:0")
    bare = standard
    while b"\xff\xc4" in bare:
        at = bare.index(b"\xff\xc4")
        bare = bare[:at] + bare[at + 2 + int.from_bytes(bare[at + 2 : at + 4], "big") :]
    expected = decode(standard)
    decode(make_crop_ready(jpeg(200, 100)))  # optimal tables, other than the standard
    try:
        found = decode(bare)
    except DataError:
        return  # libjpeg-turbo before 2.0 does not know the standard tables
    assert np.array_equal(found, expected)


@pytest.mark.parametrize("subsampling", SUBSAMPLINGS)
def test_every_truncation(subsampling: str) -> None:
    source = make_crop_ready(jpeg(72, 40, subsampling))
    whole = decode(source)
    for size in range(len(source)):
        status, pixels = _status(source[:size], (0, 0, 72, 40))
        assert status != 0 or np.array_equal(pixels, whole)


def _mutate(data: bytes, random_: random.Random) -> bytes:
    mutated = bytearray(data)
    for _ in range(random_.randint(1, 8)):
        at = random_.randrange(len(mutated))
        action = random_.randrange(4)
        if action == 0:
            mutated[at] ^= 1 << random_.randrange(8)
        elif action == 1:
            mutated[at] = random_.choice((0, 1, 0x7F, 0x80, 0xFF, 0xD0, 0xD9, 0xDA, 0xC4))
        elif action == 2:
            del mutated[at : at + random_.randint(1, 30)]
        else:
            mutated[at:at] = mutated[max(0, at - random_.randint(1, 30)) : at]
        if not mutated:
            break
    return bytes(mutated)


def _whole(data: bytes) -> np.ndarray | None:
    try:
        return decode(data)
    except DataError:
        return None


@pytest.mark.parametrize("subsampling", SUBSAMPLINGS)
def test_what_decodes_whole_decodes_as_a_box(subsampling: str) -> None:
    """Or else a data set that was verified would fail while training."""
    random_ = random.Random(subsampling)
    source = jpeg(50, 40, subsampling)
    scan = source.index(b"\xff\xda") + 14
    outcomes = set()
    for _ in range(200 * ROUNDS):
        data = source[:scan] + _mutate(source[scan:], random_)
        whole = _whole(data)
        status, pixels = _status(data, (0, 0, 50, 40))
        assert (status == 0) == (whole is not None)
        assert whole is None or np.array_equal(pixels, whole)
        outcomes.add(status)
    assert {0, 4} <= outcomes


@pytest.mark.parametrize("seed", range(6))
def test_mutations_never_crash(seed: int) -> None:
    """A smoke run of what tools/fuzz does with sanitizers."""
    random_ = random.Random(seed)
    seeds = [jpeg(50, 40, name, restart=seed % 3) for name in SUBSAMPLINGS]
    seeds += [make_crop_ready(data) for data in seeds] + [jpeg(50, 40, "4:2:0", progressive=True)]
    statuses = set()
    for _ in range(100 * ROUNDS):
        data = _mutate(random_.choice(seeds), random_)
        box = (random_.randint(-1, 40), random_.randint(-1, 30), random_.randint(0, 40), random_.randint(1, 30))
        out = np.zeros((1, 9, 9, 3), np.uint8)
        statuses.add(int(decode_batch([data], np.array([box], np.int32), np.array([True]), out)[0]))
        for call in (decode, probe, make_crop_ready):
            try:
                call(data)
            except DataError as error:
                assert str(error)
    assert 0 in statuses and 4 in statuses
