"""TFRecord against its definition; TensorFlow's own reading is in its own file."""

from __future__ import annotations

import struct

import pytest
from crc32c import crc32c

from dlio.dataset.schema import IMAGE_CLASSIFICATION, Sample
from dlio.errors import CorruptRecordError
from dlio.formats import tfrecord
from dlio.io.random_access import RandomAccessFile

HELLO = bytes.fromhex("0500000000000000eab2043e68656c6c6fbb1f1c19")


def _write(folder, count=3):
    writer = tfrecord.Writer(folder / "shard", IMAGE_CLASSIFICATION)
    for number in range(count):
        writer.write(Sample(f"k{number}", {"image": b"x" * number, "label": number}))
    writer.close()
    return folder / "shard.tfrecord"


def test_golden_bytes():
    assert struct.pack("<I", tfrecord.masked_crc(HELLO[:8])) == HELLO[8:12]
    assert struct.pack("<I", tfrecord.masked_crc(b"hello")) == HELLO[-4:]
    assert crc32c(b"123456789") == 0xE3069283  # the check value of CRC-32C


def test_records_stand_as_the_golden_bytes_do(tmp_path):
    (tmp_path / "golden").write_bytes(HELLO * 2)
    file = RandomAccessFile(tmp_path / "golden")
    assert list(tfrecord.scan(file)) == [(0, len(HELLO)), (len(HELLO), len(HELLO))]
    file.close()


def test_index_lines_are_offset_and_framed_length(tmp_path):
    path = _write(tmp_path)
    content = path.read_bytes()
    lines = path.with_suffix(".idx").read_text().splitlines()
    for line in lines:
        offset, num_bytes = map(int, line.split())
        assert struct.unpack_from("<Q", content, offset)[0] == num_bytes - 16
    assert len(lines) == 3


@pytest.mark.parametrize("at", [0, 8, 12, -5, -1])
def test_a_damaged_record_is_named_with_its_offset(at, tmp_path):
    path = _write(tmp_path)
    offset, num_bytes = map(int, path.with_suffix(".idx").read_text().splitlines()[1].split())
    content = bytearray(path.read_bytes())
    content[offset + at % num_bytes] ^= 1
    path.write_bytes(content)
    reader = tfrecord.Reader(path, IMAGE_CLASSIFICATION)
    with pytest.raises(CorruptRecordError, match="record 1") as raised:
        reader.read(1)
    assert (raised.value.record, raised.value.offset, raised.value.path) == (1, offset, str(path))
    assert (reader.read(0).key, reader.read(2).key) == ("k0", "k2")
    reader.close()


def test_an_index_of_another_shard_is_refused(tmp_path):
    path = _write(tmp_path)
    lines = path.with_suffix(".idx").read_text().splitlines(keepends=True)
    path.with_suffix(".idx").write_text("".join(lines[:-1]))
    with pytest.raises(CorruptRecordError, match="delete it") as raised:
        tfrecord.Reader(path, IMAGE_CLASSIFICATION)
    assert raised.value.path.endswith(".idx")
