"""Hostile records: an error that names what is wrong, the same by every decoder; never other pixels."""

from __future__ import annotations

import random
import struct

import numpy as np
import pytest

from dlio.errors import DataError
from dlio.native import _jpeg, crc32c, decode, decode_batch, from_planes, measure, probe, to_planes
from tests.helpers.rounds import ROUNDS
from tests.native.jpegs import SUBSAMPLINGS, jpeg

_RECORD = to_planes(jpeg(90, 50)) or b""
_HEADER, _TRAILER = struct.unpack_from("<II", _RECORD, 8)


def _status(record: bytes) -> int:
    out = np.full((1, 9, 9, 3), 7, np.uint8)
    status = int(decode_batch([record], np.array([[3, 2, 40, 30]], np.int32), np.array([True]), out)[0])
    assert status == 0 or (out == 7).all()
    return status


def _sealed(record: bytes) -> bytes:
    """Returns the record with the checksum of its bytes."""
    return record[:-4] + struct.pack("<I", crc32c(record[:-4]))


def _with(at: int, new: bytes) -> bytes:
    return _sealed(_RECORD[:at] + new + _RECORD[at + len(new) :])


@pytest.mark.parametrize(
    ("record", "message"),
    [
        pytest.param(_RECORD[:19], "it ends within its first 16 bytes", id="fields"),
        pytest.param(_with(5, b"\x04"), "flags 4, expected 0 to 3", id="flags"),
        pytest.param(_with(6, b"\xc8"), "preset 200", id="preset"),
        pytest.param(_with(7, b"\x00"), "tiles of 0 MCUs", id="no tiles"),
        pytest.param(_with(7, b"\x11"), "tiles of 17 MCUs", id="wide tiles"),
        pytest.param(_with(8, b"\xff\xff\xff\xff"), "a header of 4294967295", id="header size"),
        pytest.param(_with(12, b"\xff\xff\xff\x7f"), "a trailer of 2147483647", id="trailer size"),
        pytest.param(_with(16, b"\x00"), "not that of a baseline JPEG", id="header"),
        pytest.param(_with(_RECORD.index(b"\xff\xc0") + 11, b"\x33"), "sampling", id="sampling"),
        pytest.param(_with(_RECORD.index(b"\xff\xc0") + 5, b"\x70\x00\x70\x00"), "pixels, at most", id="bomb"),
        pytest.param(_with(_RECORD.index(b"\xff\xc0") + 5, b"\x20\x00\x20\x00"), "tiles of the image", id="tiles"),
        pytest.param(_with(16 + _HEADER + _TRAILER, b"\x01\x00"), "by their sizes", id="tile size"),
        pytest.param(_RECORD[:-1] + bytes([_RECORD[-1] ^ 1]), "CRC-32C", id="checksum"),
        pytest.param(_RECORD[:-9] + bytes([_RECORD[-9] ^ 1]) + _RECORD[-8:], "CRC-32C", id="a bit of a tile"),
        pytest.param(_RECORD + b"\x00", "by their sizes", id="a byte more"),
    ],
)
def test_damage_is_named(record: bytes, message: str) -> None:
    for call in (from_planes, decode):
        with pytest.raises(DataError, match=message):
            call(record)
    assert _status(record) in (2, 4, 6)


@pytest.mark.parametrize("other", [b"\x8aDRK" + _RECORD[4:], _with(4, b"\x02"), b"", _RECORD[:4]])
def test_what_is_no_record_of_this_version_does_not_come_back(other: bytes) -> None:
    with pytest.raises(DataError, match="no decode-ready record of version 1"):
        from_planes(other)
    assert _status(other) == 2


def test_every_truncation_and_every_changed_byte_is_an_error() -> None:
    for size in range(0, len(_RECORD), 7):
        assert _status(_RECORD[:size]) in (2, 4)
    for at in range(len(_RECORD)):
        assert _status(_RECORD[:at] + bytes([_RECORD[at] ^ 0x10]) + _RECORD[at + 1 :]) != 0


def _outcome(record: bytes, decoder: str) -> tuple[str, bytes]:
    _jpeg.use_back_end(decoder)
    try:
        return "", decode(record).tobytes() + from_planes(record)
    except DataError as error:
        return str(error), b""
    finally:
        _jpeg.use_back_end(_jpeg.BACK_ENDS[0])


@pytest.mark.parametrize("subsampling", SUBSAMPLINGS)
def test_sealed_damage_is_the_same_for_every_decoder(subsampling: str) -> None:
    """As if the one who does the damage also corrects the checksum: reads stay within bounds."""
    random_ = random.Random(subsampling)
    records = [to_planes(jpeg(50, 40, subsampling, quality=quality)) or b"" for quality in (60, 100)]
    refused = 0
    for _ in range(60 * ROUNDS):
        damaged = bytearray(random_.choice(records))
        begin = random_.choice((0, struct.unpack_from("<I", damaged, 8)[0]))
        for _ in range(random_.randint(1, 6)):
            damaged[random_.randrange(begin, len(damaged))] = random_.choice((0, 255, random_.randrange(256)))
        record = _sealed(bytes(damaged))
        outcomes = {_outcome(record, decoder) for decoder in _jpeg.BACK_ENDS}
        assert len(outcomes) == 1
        refused += outcomes.pop()[0] != ""
        measure([record])
    assert 0 < refused < 60 * ROUNDS


def test_a_header_without_huffman_tables_does_not_come_back() -> None:
    """The pixels exist, the file is not."""
    bare = _sealed(_RECORD[:5] + b"\x00" + _RECORD[6:])
    with pytest.raises(DataError, match="lacks a Huffman table"):
        from_planes(bare)
    assert probe(bare).width == 90
