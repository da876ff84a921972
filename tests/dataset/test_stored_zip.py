"""Uncompressed zip files: a member reads as stored, or an error says why not."""

from __future__ import annotations

import errno
import io
import os
import struct
import zipfile
from contextlib import closing
from pathlib import Path

import pytest

from dlio.dataset.stored_zip import read_directory, read_member
from dlio.errors import CorruptRecordError, StorageError
from dlio.io.random_access import RandomAccessFile

MEMBERS = {"first.npy": b"1" * 100, "empty.npy": b"", "päth/third.npy": bytes(range(256))}


def zipped(members: dict[str, bytes] = MEMBERS) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return out.getvalue()


def read(path: Path) -> dict[str, bytes]:
    with closing(RandomAccessFile(path)) as file:
        return {name: read_member(file, name, member) for name, member in read_directory(file).items()}


def test_what_pythons_zipfile_has_stored_is_read(tmp_path: Path) -> None:
    path = tmp_path / "stored.zip"
    path.write_bytes(zipped())
    assert read(path) == MEMBERS
    path.write_bytes(zipped({}))
    assert read(path) == {}


def test_numbers_of_64_bits_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a table of more than 2 GiB has them."""
    path = tmp_path / "large.zip"
    monkeypatch.setattr(zipfile, "ZIP64_LIMIT", 10)
    path.write_bytes(zipped())
    assert path.read_bytes().count(b"PK\6\6") == 1
    assert read(path) == MEMBERS


def test_flipped_bits_among_64_bit_numbers_are_found_or_harmless(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zipfile, "ZIP64_LIMIT", 10)
    content, path = zipped(), tmp_path / "large.zip"
    path.write_bytes(content)
    with path.open("r+b", buffering=0) as file:
        for bit in range(8 * len(content)):
            os.pwrite(file.fileno(), bytes([content[bit // 8] ^ 1 << bit % 8]), bit // 8)
            try:
                assert read(path) == MEMBERS, f"bit {bit}"
            except CorruptRecordError as error:
                assert error.path == str(path)
            os.pwrite(file.fileno(), content[bit // 8 : bit // 8 + 1], bit // 8)


def test_an_input_output_error_is_none_of_a_damaged_zip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "stored.zip"
    path.write_bytes(zipped())

    def fail(descriptor: int, num_bytes: int, offset: int) -> bytes:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "pread", fail)
    with pytest.raises(StorageError, match=r"stored\.zip.*Input/output error") as raised:
        read(path)
    assert raised.value.errno == errno.EIO


def test_a_name_that_leads_to_another_member_is_refused(tmp_path: Path) -> None:
    """The checksum would be right: one flipped bit in a directory makes field_a of field_b."""
    content = zipped({"field_a": b"a", "field_b": b"b"})
    path = tmp_path / "stored.zip"
    at = content.rindex(b"field_a")
    path.write_bytes(content[:at] + b"field_c" + content[at + 7 :])
    with pytest.raises(CorruptRecordError, match="its own header is missing"):
        read(path)
    path.write_bytes(content[:at] + b"field_b" + content[at + 7 :])
    with pytest.raises(CorruptRecordError, match="1 different members, expected 2"):
        read(path)


@pytest.mark.parametrize("num_bytes", [0, 1, 21, 22])
def test_a_file_without_an_end_is_no_zip(tmp_path: Path, num_bytes: int) -> None:
    path = tmp_path / "stored.zip"
    path.write_bytes(bytes(num_bytes))
    with pytest.raises(CorruptRecordError, match="its zip directory is damaged"):
        read(path)


def test_a_number_of_64_bits_that_is_missing_is_told(tmp_path: Path) -> None:
    content = bytearray(zipped({"first": b"1"}))
    struct.pack_into("<L", content, content.index(b"PK\1\2") + 42, 0xFFFFFFFF)
    path = tmp_path / "stored.zip"
    path.write_bytes(content)
    with pytest.raises(CorruptRecordError, match="64 bits is missing"):
        read(path)
