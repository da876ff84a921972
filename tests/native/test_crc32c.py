"""CRC-32C by the quickest way that the processor has, compared with the definition."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlio import native

NATIVE = Path(native.__file__).parent
COMPILERS = {"g++": [], "aarch64-linux-gnu-g++": ["qemu-aarch64"]}  # and what runs their programs

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


@given(data=st.binary(max_size=200), crc=st.integers(0, 2**32 - 1))
def test_one_piece_is_the_checksum_of_many(data: bytes, crc: int) -> None:
    assert [native.crc32c(data, crc)] == extended(data, [0, len(data)], crc) == [by_definition(data, crc)]
    assert native.crc32c(memoryview(RANDOM), crc) == extended(RANDOM, [0, len(RANDOM)], crc)[0]  # without the lock


@pytest.mark.parametrize("wrong", [("text",), (b"", -1), (b"", 2**32), (b"", 1.5), (memoryview(b"abcd")[::2],)])
def test_what_is_no_data_or_checksum_is_refused(wrong: tuple[object, ...]) -> None:
    with pytest.raises((TypeError, BufferError)):
        native.crc32c(*wrong)


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


@pytest.mark.parametrize("compiler", COMPILERS)
def test_all_ways_of_a_processor_agree(compiler: str, tmp_path: Path) -> None:
    if missing := [each for each in (compiler, *COMPILERS[compiler]) if not shutil.which(each)]:
        pytest.skip(f"needs {missing[0]}")
    source, program = Path(__file__).with_name("crc32c_ways.cpp"), tmp_path / "crc32c_ways"
    sources = [source, *NATIVE.glob("crc32c/*.cpp")]
    subprocess.run([compiler, "-std=c++17", "-O2", "-static", f"-I{NATIVE}", *sources, "-o", program], check=True)
    run = subprocess.run([*COMPILERS[compiler], program], capture_output=True, text=True, timeout=120)
    assert (run.returncode, run.stdout[1:]) == (0, " ways agree\n")
