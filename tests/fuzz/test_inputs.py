"""Inputs and their mutations: equal ones for equal seeds, with matching checksums where required."""

from __future__ import annotations

import io
import random
import tarfile
import zipfile
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlio.formats.tfrecord import masked_crc
from tools.fuzz import repair
from tools.fuzz.inputs import CASE, FIXED, REPAIRED, fixed, pack, unpack
from tools.fuzz.mutate import mutate

NAMES = st.text(st.characters(codec="utf-8"), min_size=1, max_size=20)


@given(st.dictionaries(NAMES, st.binary(max_size=50), max_size=4))
def test_an_input_is_unpacked_as_it_was(files):
    assert unpack(pack(files)) == files


@given(st.binary(max_size=100))
def test_any_bytes_are_an_input(data):
    assert unpack(pack(unpack(data))) == unpack(data)


@given(st.integers(0, 2**32))
def test_equal_seeds_mutate_equally_and_spare_what_is_fixed(seed):
    files = {CASE: b"{}", **fixed({"a.tar": b"a" * 1024, "b.csv": b"path,label\nx,1\n", "c": b""}, "a.tar")}
    one, two = (mutate(files, random.Random(seed), [files]) for _ in range(2))
    assert one == two
    assert one[CASE] == b"{}"
    assert one[FIXED + "a.tar"] == files[FIXED + "a.tar"]


def test_a_mutation_says_where_a_checksum_was_made_to_fit():
    files = {"a.tfrecord": (5).to_bytes(8, "little") + bytes(4) + b"hello" + bytes(4)}
    changed = [mutate(files, random.Random(seed)) for seed in range(50)]
    told = [REPAIRED in one for one in changed]
    assert any(told)
    assert not all(told)
    assert all(
        (repair.tfrecord(one["a.tfrecord"]) == one["a.tfrecord"]) >= mended
        for one, mended in zip(changed, told, strict=True)
    )


def test_records_get_the_checksums_of_what_they_hold():
    data = (5).to_bytes(8, "little") + bytes(4) + b"hello" + bytes(4) + b"\xff" * 20
    mended = repair.tfrecord(data)
    assert int.from_bytes(mended[8:12], "little") == masked_crc(mended[:8])
    assert int.from_bytes(mended[17:21], "little") == masked_crc(b"hello")
    assert len(mended) == len(data)


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_a_changed_zip_is_read_by_python_again(method):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as archive:
        archive.writestr("a", b"hello" * 20)
    data = out.getvalue()
    wrong = zlib.crc32(b"hello" * 20).to_bytes(4, "little")
    broken = data.replace(wrong, b"abcd")
    with zipfile.ZipFile(io.BytesIO(broken)) as archive, pytest.raises(zipfile.BadZipFile):
        archive.read("a")
    assert repair.zipped(broken) == data


def test_a_changed_tar_is_read_by_python_again():
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        archive.addfile(tarfile.TarInfo("abc"))
    broken = out.getvalue().replace(b"abc", b"abd")
    with pytest.raises(tarfile.ReadError), tarfile.open(fileobj=io.BytesIO(broken)):
        pass
    with tarfile.open(fileobj=io.BytesIO(repair.tar(broken))) as archive:
        assert archive.getnames() == ["abd"]
