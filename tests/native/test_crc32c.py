"""CRC-32C by the quickest way that the processor has, beside the definition."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlio import native

pytestmark = pytest.mark.skipif(not native.available, reason="the compiled core is not installed")
RANDOM = np.random.default_rng(3).integers(0, 256, 70_000, np.uint8).tobytes()


def by_definition(data: bytes, crc: int = 0) -> int:
    """Returns the checksum of RFC 3720, bit by bit."""
    state = ~crc & 0xFFFFFFFF
    for byte in data:
        state ^= byte
        for _ in range(8):
            state = state >> 1 ^ (0x82F63B78 if state & 1 else 0)
    return ~state & 0xFFFFFFFF


def extended(data: bytes, bounds: list[int], crc: int = 0) -> list[int]:
    """Returns the checksums of the pieces of data between bounds, each after `crc`."""
    crcs = np.full(len(bounds) - 1, crc, np.uint32)
    native.extend_crcs(data, np.array(bounds, np.int64), crcs)
    return [int(each) for each in crcs]


def test_known_values() -> None:
    assert extended(b"123456789", [0, 9]) == [0xE3069283]
    assert extended(bytes(32), [0, 32]) == [0x8A9136AA]  # RFC 3720, B.4
    assert extended(b"\xff" * 32, [0, 32]) == [0x62A8AB43]


def test_every_length_from_every_place_of_a_vector() -> None:
    crc = 0x12345678
    for size in range(1, 1200):
        begin = size % 37
        shorter = extended(RANDOM, [begin, begin + size - 1], crc)[0]
        longer = by_definition(RANDOM[begin + size - 1 : begin + size], shorter)
        assert extended(RANDOM, [begin, begin + size], crc) == [longer]


@given(
    begin=st.integers(0, 63),
    sizes=st.lists(st.integers(0, 20_000), min_size=2, max_size=3),
    crc=st.integers(0, 2**32 - 1),
)
def test_the_whole_is_the_sum_of_its_parts(begin: int, sizes: list[int], crc: int) -> None:
    end = begin + sum(sizes)
    summed, at = crc, begin
    for size in sizes:
        (summed,) = extended(RANDOM, [at, at + size], summed)
        at += size
    assert extended(RANDOM, [begin, end], crc) == [summed]


def test_a_long_piece_has_the_checksum_of_its_definition() -> None:
    assert extended(RANDOM, [5, 9000]) == [by_definition(RANDOM[5:9000])]
