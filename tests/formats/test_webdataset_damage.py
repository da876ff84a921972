"""Damaged and hostile tars, and indexes of them: refused by an error that names the place."""

from __future__ import annotations

import tarfile

import pytest

from dlio.dataset.schema import IMAGE_CLASSIFICATION
from dlio.errors import CorruptRecordError
from dlio.formats import webdataset
from tests.formats.webdataset_tars import labelled, read, tar, write


def _signed(block):
    block = bytearray(block)
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


def _hostile(**changes):
    info = tarfile.TarInfo("k.jpg")
    block = bytearray(info.tobuf(tarfile.USTAR_FORMAT))
    for at, value in changes.values():
        block[at : at + len(value)] = value
    return _signed(block)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\0" * 100,
        b"x" * 512,
        _hostile(size=(124, b"77777777777\0")),
        _hostile(size=(124, b"\x80" + b"\x7f" * 11)),
        _hostile(size=(124, b"\xff" * 12)),
        _hostile(size=(124, b"-1         \0")),
        _hostile(kind=(156, b"L"), size=(124, b"00000400000\0")) + bytes(1 << 17),
        _hostile(kind=(156, b"x"), size=(124, b"77777777777\0")),
        _hostile(kind=(156, b"x"), size=(124, b"00000000012\0")) + b"99 path=a\n".ljust(512, b"\0"),
        _hostile(kind=(156, b"x"), size=(124, b"00000000012\0")) + b"10 size=-\n".ljust(512, b"\0") + _hostile(),
        _hostile(kind=(156, b"S")),
        _hostile() + b"\1" + _hostile()[1:],
        _hostile(),
    ],
)
def test_hostile_tars(content, tmp_path):
    path = tmp_path / "hostile.tar"
    path.write_bytes(content)
    with pytest.raises(CorruptRecordError) as raised:
        webdataset.Reader(path, IMAGE_CLASSIFICATION)
    assert raised.value.path == str(path)
    assert raised.value.offset is not None


@pytest.mark.parametrize(
    "index",
    [
        "",
        "v1.2 2\n",
        "v1.2 1\njpg 512 5\n",
        "v1.2 1\njpg 0 5 k.jpg\n",
        "v1.2 1\njpg 512 99999 k.jpg\n",
        "v1.2 1\njpg 512 -5 k.jpg\n",
        "v1.2 1\njpg 99999999999999999999 5 k.jpg\n",
        "v1.2 1\njpg x 5 k.jpg\n",
        "v1.2 1\njpg 512 5 k.jpg cls 512 1 k.cls\n",
        "v1.2 1\njpg 512 5 k.jpg cls 1536 1 k.cls",
        "v9 1\njpg 512 5 k.jpg\n",
    ],
)
def test_hostile_indexes(index, tmp_path):
    path = write(tmp_path, labelled(["k"]))
    path.with_suffix(".idx").write_text(index)
    with pytest.raises(CorruptRecordError, match="delete it") as raised:
        webdataset.Reader(path, IMAGE_CLASSIFICATION)
    assert raised.value.path.endswith(".idx")


def test_an_index_that_mixes_samples_is_noticed(tmp_path):
    path = write(tmp_path, labelled(["a", "b"]))
    words = path.with_suffix(".idx").read_text().split()
    path.with_suffix(".idx").write_text(f"v1.2 1\n{' '.join(words[2:6] + words[14:18])}\n")
    with pytest.raises(CorruptRecordError, match="files of one sample"):
        read(path)


@pytest.mark.parametrize(
    ("members", "problem"),
    [
        ([("k.jpg", b"")], "'label'"),
        ([("k.jpg", b""), ("k.png", b""), ("k.cls", b"1")], "'image'"),
        ([("k.jpg", b""), ("k.cls", b"one")], "one"),
        ([("k.jpg", b""), ("k.cls", b"0.5")], "int64"),
        ([("k.jpg", b""), ("k.cls", b"9" * 20)], "int64"),
        ([("k.jpg", b""), ("k.cls", b"9" * 9000)], "label|int64|inf"),
        ([("k.jpg", b""), ("k.JPG", b""), ("k.cls", b"1")], "two files"),
        ([("k.jpg", b""), ("k.label.npy", b"\x93NUMPY")], "npy"),
    ],
)
def test_a_sample_that_does_not_follow_the_schema_is_named(members, problem, tmp_path):
    path = tar(tmp_path / "other.tar", members)
    with pytest.raises(CorruptRecordError, match=problem) as raised:
        read(path)
    assert (raised.value.record, raised.value.offset) == (0, 0)
