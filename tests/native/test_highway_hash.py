"""HighwayHash, compared with the values that its authors publish, by each way that the processor has."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from dlio import native
from tests.native.test_crc32c import COMPILERS

NATIVE = Path(native.__file__).parent
pytestmark = pytest.mark.skipif(not native.available, reason="the compiled core is not installed")

KEY = (0x0706050403020100, 0x0F0E0D0C0B0A0908, 0x1716151413121110, 0x1F1E1D1C1B1A1918)
# highwayhash `c/highwayhash_test.c`: of no byte, of the byte 0, of 0 and 1, and so on
KNOWN = [0x907A56DE22C26E53, 0x7EAB43AAC7CDDD78, 0xB8D0569AB0B53D62, 0x5C6BEFAB8A463D80, 0xF205A46893007EDA]
KNOWN += [0x2B8A1668E4A94541, 0xBD4CCC325BEFCA6F, 0x4D02AE1738F59482, 0xE1205108E55F3171, 0x32D2644EC77A1584]
KNOWN += [0xF6E10ACDB103A90B, 0xC3BBF4615B415C15, 0x243CC2040063FA9C, 0xA89A58CE65E641FF, 0x24B031A348455A23]
KNOWN += [0x40793F86A449F33B, 0xCFAB3489F97EB832, 0x19FE67D2C8C5C0E2, 0x04DD90A69C565CC2, 0x75D9518E2371C504]
KNOWN += [0x38AD9B1141D3DD16, 0x0264432CCD8A70E0, 0xA9DB5A6288683390, 0xD7B05492003F028C, 0x205F615AEA59E51E]
KNOWN += [0xEEE0C89621052884, 0x1BFC1A93A7284F4F, 0x512175B5B70DA91D, 0xF71F8976A0A2C639, 0xAE093FEF1F84E3E7]
KNOWN += [0x22CA92B01161860F, 0x9FC7007CCF035A68, 0xA0C964D9ECD580FC, 0x2C90F73CA03181FC, 0x185CF84E5691EB9E]
KNOWN += [0x4FC1F5EF2752AA9B, 0xF5B7391A5E0A33EB, 0xB9B84B83B4E96C9C]


def test_known_values() -> None:
    assert [native.highway_hash(bytes(range(size)), KEY) for size in range(len(KNOWN))] == KNOWN
    assert native.highway_hash(memoryview(bytes(range(128, 161))), (1, 2, 3, 4)) == 0x53C516CCE478CAD7


@pytest.mark.parametrize(
    "wrong", [("text", KEY), (memoryview(b"abcd")[::2], KEY), (b"", KEY[:3]), (b"", (-1, 0, 0, 0))]
)
def test_what_is_no_data_or_key_is_refused(wrong: tuple[object, ...]) -> None:
    with pytest.raises((TypeError, BufferError)):
        native.highway_hash(*wrong)


@pytest.mark.parametrize("compiler", COMPILERS)
def test_all_ways_of_a_processor_agree(compiler: str, tmp_path: Path) -> None:
    if missing := [each for each in (compiler, *COMPILERS[compiler]) if not shutil.which(each)]:
        pytest.skip(f"needs {missing[0]}")
    sources = [Path(__file__).with_name("highway_hash_ways.cpp"), NATIVE / "highway_hash.cpp", NATIVE / "processor.cpp"]
    program = tmp_path / "highway_hash_ways"
    subprocess.run([compiler, "-std=c++17", "-O2", "-static", f"-I{NATIVE}", *sources, "-o", program], check=True)
    run = subprocess.run([*COMPILERS[compiler], program], capture_output=True, text=True, timeout=120)
    assert (run.returncode, run.stdout[1:]) == (0, " ways agree\n")
