"""The frames around records: each check of a length, a mark or a checksum refuses what only it can refuse."""

from __future__ import annotations

import struct
import tarfile
from pathlib import Path

import pytest

from dlio.dataset.schema import IMAGE_CLASSIFICATION, Sample
from dlio.errors import CorruptRecordError
from dlio.formats import recordio, tfrecord, webdataset
from dlio.formats.layouts import tar
from dlio.testing.container import write_all
from tests.formats.webdataset_tars import labelled, read, write

WHOLE, FIRST, MIDDLE, LAST = range(4)


def part(flag: int, data: bytes, magic: int = recordio.MAGIC) -> bytes:
    """Returns a part of a record of RecordIO; its data has a multiple of 4 bytes."""
    return struct.pack("<II", magic, flag << 29 | len(data)) + data


@pytest.mark.parametrize(
    "framed, problem",
    [
        (part(WHOLE, b"data", magic=1), "expected a part's magic number"),
        (part(LAST, b"data"), "the flag 3 is out of order"),
        (part(MIDDLE, b"data") + part(LAST, b"data"), "the flag 2 is out of order"),
        (part(FIRST, b"data") + part(WHOLE, b"data"), "the flag 0 is out of order"),
        (part(WHOLE, b"data") + part(WHOLE, b"data"), "expected one record in 24 bytes"),
        (part(WHOLE, b"data")[:-1], "expected one record in 11 bytes"),
        (part(FIRST, b"data"), "expected one record in 12 bytes"),
    ],
)
def test_parts_that_make_no_record_are_refused(framed: bytes, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        recordio.unframe(framed)


def test_a_magic_number_in_the_data_begins_a_part() -> None:
    magic = struct.pack("<I", recordio.MAGIC)
    framed = b"".join(recordio.frame([b"abcd" + magic, b"efgh"]))
    assert framed == part(FIRST, b"abcd") + part(LAST, b"efgh")
    assert bytes(recordio.unframe(framed)) == b"abcd" + magic + b"efgh"


def samples(count: int) -> list[Sample]:
    """Returns samples of image classification."""
    return [Sample(f"k{number}", {"image": b"image", "label": number}) for number in range(count)]


def test_a_shard_of_recordio_that_is_cut_off_is_refused_when_it_is_opened(tmp_path: Path) -> None:
    write_all(recordio.Writer(tmp_path / "shard", IMAGE_CLASSIFICATION), samples(2))
    path = tmp_path / "shard.rec"
    path.with_suffix(".idx").unlink()
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(CorruptRecordError, match="it is cut off"):
        recordio.Reader(path, IMAGE_CLASSIFICATION)


def test_an_index_that_joins_two_records_is_noticed_by_the_length(tmp_path: Path) -> None:
    write_all(tfrecord.Writer(tmp_path / "shard", IMAGE_CLASSIFICATION), samples(2))
    path = tmp_path / "shard.tfrecord"
    path.with_suffix(".idx").write_text(f"0 {path.stat().st_size}\n")
    reader = tfrecord.Reader(path, IMAGE_CLASSIFICATION)
    with pytest.raises(CorruptRecordError, match="the record's header says"):
        reader.read(0)
    reader.close()


def header(**changes: tuple[int, bytes]) -> bytearray:
    """Returns the header of a file in a tar, with other bytes at some places and the right checksum."""
    block = bytearray(tarfile.TarInfo("k.jpg").tobuf(tarfile.USTAR_FORMAT))
    for at, value in changes.values():
        block[at : at + len(value)] = value
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return block


def test_a_flipped_bit_of_a_tars_header_is_refused() -> None:
    assert tar.Header.parse(header()).name == b"k.jpg"
    block = header()
    block[0] ^= 1
    with pytest.raises(ValueError, match="its checksum is wrong"):
        tar.Header.parse(block)


@pytest.mark.parametrize(
    "content, most",
    [
        (header(size=(124, b"00000002000\0")) + bytes(512), "at most 512"),
        (header(kind=(156, b"L"), size=(124, b"00000400000\0")) + bytes(1 << 18), "at most 65536"),
    ],
    ids=["member", "long name"],
)
def test_a_length_in_a_tar_is_bounded(content: bytes, most: str, tmp_path: Path) -> None:
    (tmp_path / "shard.tar").write_bytes(content)
    with pytest.raises(CorruptRecordError, match=f"a member of .* {most} fit"):
        webdataset.Reader(tmp_path / "shard.tar", IMAGE_CLASSIFICATION)


def test_an_index_of_other_sizes_than_the_headers_is_noticed(tmp_path: Path) -> None:
    path = write(tmp_path, labelled(["a"]))
    index = path.with_suffix(".idx")
    head, words = index.read_text().splitlines()
    name, offset, size, *rest = words.split()
    index.write_text(f"{head}\n{' '.join([name, offset, str(int(size) - 1), *rest])}\n")
    with pytest.raises(CorruptRecordError, match="expected the header of a file of"):
        read(path)
