"""LMDB files of other tools: what the package `lmdb` writes as Caffe does, changes and copies, and what is refused."""

from __future__ import annotations

import struct

import lmdb
import pytest

from dlio.errors import CorruptRecordError
from dlio.formats import lmdb as container
from dlio.formats.layouts.lmdb import PAGE_BYTES as PAGE
from tests.formats.lmdb_shards import BYTES, caffe_datum, foreign, read, samples, single_file, write

_LAST_PAGE_AT = 136  # in a meta page (struct MDB_meta of mdb.c)


def test_reads_what_convert_imageset_writes(tmp_path):
    records = [(b"%08d_n01/%d.jpg" % (i, i), caffe_datum(b"%d" % i * (i % 900), i % 1000)) for i in range(2500)]
    found = read(foreign(tmp_path / "caffe", records))
    assert [sample.key for sample in found] == [f"n01/{i}.jpg" for i in range(2500)]
    assert [sample.fields["label"] for sample in found] == [i % 1000 for i in range(2500)]
    assert found[899].fields["image"] == b"899" * 899


def test_reads_foreign_keys_in_their_order(tmp_path):
    keys = [b"\xff\x00", b"b", b"a", b"12345678", struct.pack(">I", 7)]
    found = read(foreign(tmp_path / "own", [(key, caffe_datum(key, 0)) for key in keys]))
    assert [sample.fields["image"] for sample in found] == sorted(keys)
    assert found[-1].key == "\\xff\x00"


@pytest.mark.parametrize("compact", [False, True])
def test_reads_a_database_that_was_changed_and_copied(tmp_path, compact):
    path = foreign(tmp_path / "a", [(b"%05d" % i, caffe_datum(bytes(i), 1)) for i in range(4000)])
    (tmp_path / "copy").mkdir()
    with lmdb.open(str(path), map_size=1 << 30) as environment:
        with environment.begin(write=True) as txn:
            for i in range(0, 4000, 3):
                txn.delete(b"%05d" % i)
            txn.put(b"00001", caffe_datum(b"changed", 2))
        environment.copy(str(tmp_path / "copy"), compact=compact)
    for place in (path, tmp_path / "copy"):
        found = read(place)
        assert [sample.key for sample in found] == [f"{i:05d}" for i in range(4000) if i % 3]
        assert found[0].fields == {"image": b"changed", "label": 2}
        assert all(len(sample.fields["image"]) == int(sample.key) for sample in found[1:])


def test_reads_a_file_whose_last_pages_were_never_written(tmp_path):
    """LMDB leaves pages at the end out that were taken and given back in one transaction."""
    path = foreign(tmp_path / "a", [(b"%03d" % i, caffe_datum(bytes(20_000), i)) for i in range(20)])
    with (path / "data.mdb").open("r+b") as file:
        for meta in (0, PAGE):
            file.seek(meta + _LAST_PAGE_AT)
            last = int.from_bytes(file.read(8), "little")
            file.seek(meta + _LAST_PAGE_AT)
            file.write((last + 2).to_bytes(8, "little"))
    with lmdb.open(str(path), readonly=True) as environment, environment.begin() as txn:
        assert environment.info()["last_pgno"] * PAGE >= (path / "data.mdb").stat().st_size
        assert len(dict(txn.cursor())) == 20
    assert [sample.fields["label"] for sample in read(path)] == list(range(20))


def test_lmdb_can_add_to_what_was_written(tmp_path):
    path = write(tmp_path / "a", samples(1000))
    with lmdb.open(str(path), map_size=1 << 30) as environment, environment.begin(write=True) as txn:
        txn.put(b"00000000_", caffe_datum(b"first", 0))
    assert len(read(path)) == 1001 and read(path)[0].fields["image"] == b"first"


def test_other_kinds_of_database_are_named(tmp_path):
    with lmdb.open(str(tmp_path / "named"), max_dbs=1) as environment:
        environment.open_db(b"images")
    with pytest.raises(CorruptRecordError, match=r"record 0.*named database"):
        container.Reader(tmp_path / "named", BYTES)
    path = write(tmp_path / "duplicates", [], single_file)
    data = bytearray(path.read_bytes())
    for page in range(2):
        data[page * PAGE + 92] |= 4  # MDB_DUPSORT, which the package lmdb never sets for the unnamed database
    path.write_bytes(data)
    with pytest.raises(CorruptRecordError, match="several values"):
        container.Reader(path, BYTES)
