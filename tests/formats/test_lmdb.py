"""LMDB against the package `lmdb`, which writes and reads it as Caffe does."""

from __future__ import annotations

import os
import random
import struct
import subprocess
import sys
import threading
from pathlib import Path

import lmdb
import numpy as np
import pytest
from hypothesis import example as given_example
from hypothesis import given
from hypothesis import strategies as st

from dlio.errors import CorruptRecordError, SchemaError, StorageError
from dlio.formats import lmdb as container
from dlio.formats.layouts.lmdb_tree import TreeWriter
from dlio.formats.payloads import datum, example
from dlio.sample import IMAGE_CLASSIFICATION, Sample, Schema
from tests.formats.conftest import read_all, write_all

BYTES = Schema.of({"image": "bytes", "label": "int64"})
PAGE = 4096


def samples(count: int, largest: int = 9000) -> list[Sample]:
    generator = random.Random(count)
    sizes = [0, 1, 100, 2000, 2030, 2048, largest]  # within a leaf page, at the border, and on overflow pages
    return [
        Sample(f"cat/{i} é.jpg", {"image": generator.randbytes(generator.choice(sizes)), "label": i - 3})
        for i in range(count)
    ]


def write(stem: Path, records: list[Sample], writer=container.Writer, schema: Schema = BYTES) -> Path:
    write_all(writer(stem, schema), records)
    return stem.with_name(stem.name + container.SUFFIX)


def read(path: Path, schema: Schema = BYTES) -> list[Sample]:
    return read_all(container.Reader(path, schema))


def caffe_datum(image: bytes, label: int) -> bytes:
    return b"\x22" + varint(len(image)) + image + b"\x28" + varint(label) + b"\x38\x01"


def varint(number: int) -> bytes:
    return bytes([number]) if number < 128 else bytes([number & 127 | 128]) + varint(number >> 7)


def foreign(path: Path, records: list[tuple[bytes, bytes]], **options) -> Path:
    """Writes a database as convert_imageset does: a map of 1 TiB, a commit each thousand records."""
    with lmdb.open(str(path), map_size=1 << 40, **options) as environment:
        for start in range(0, len(records), 1000):
            with environment.begin(write=True) as transaction:
                for key, value in records[start : start + 1000]:
                    transaction.put(key, value)
    return path


@pytest.mark.parametrize("count", [0, 1, 2, 70, 5000])
@pytest.mark.parametrize("writer", [container.Writer, container.SingleFileWriter])
def test_samples_come_back_with_their_keys(tmp_path, writer, count):
    written = samples(count, largest=3000)
    assert read(write(tmp_path / "a", written, writer)) == written


def test_a_shard_is_one_file_that_ends_with_its_last_page(tmp_path):
    path = write(tmp_path / "a", samples(1500))
    assert names_in(path) == ["data.mdb"]
    with lmdb.open(str(path), readonly=True, lock=False) as environment:
        used = (environment.info()["last_pgno"] + 1) * environment.stat()["psize"]
    found = (path / "data.mdb").stat()
    assert found.st_size == used
    assert found.st_mode & 0o777 == 0o666 & ~current_umask()


def names_in(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


def current_umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_a_single_file_has_no_lock_beside_it(tmp_path):
    write(tmp_path / "a", samples(3), container.SingleFileWriter)
    assert names_in(tmp_path) == ["a.lmdb"]


def test_equal_samples_give_equal_bytes(tmp_path):
    first, second = (write(tmp_path / name, samples(3000)) / "data.mdb" for name in "ab")
    assert first.read_bytes() == second.read_bytes()


@pytest.mark.parametrize("writer", [container.Writer, container.SingleFileWriter])
def test_the_package_lmdb_reads_caffes_keys_and_datums(tmp_path, writer):
    written = samples(200)
    path = write(tmp_path / "a", written, writer)
    with lmdb.open(str(path), subdir=path.is_dir(), readonly=True, lock=False) as environment:
        found = dict(environment.begin().cursor())
    expected = {b"%08d_%s" % (i, sample.key.encode()): sample.fields for i, sample in enumerate(written)}
    assert list(found) == list(expected)
    for key, fields in expected.items():
        assert datum.decode(found[key], BYTES).fields == fields
    assert found[b"00000005_" + written[5].key.encode()] == caffe_datum(**written[5].fields)


def test_other_schemas_are_examples(tmp_path):
    schema = Schema.of({"image": "bytes", "label": "float32[3]", "frames": "bytes[]"})
    label = np.array([0, 1, 0.5], dtype="float32")
    written = Sample("a/b", {"image": b"x", "label": label, "frames": [b"1", b""]})
    path = write(tmp_path / "a", [written], schema=schema)
    with lmdb.open(str(path), readonly=True, lock=False) as environment, environment.begin() as txn:
        assert txn.get(b"00000000_a/b") == b"".join(example.encode(written, schema))
    (found,) = read(path, schema)
    assert found.key == "a/b" and found.fields["frames"] == [b"1", b""]
    np.testing.assert_array_equal(found.fields["label"], label, strict=True)


@pytest.mark.parametrize("key", ["k" * 600, "é" * 300, "x" + "é" * 300, "\N{GRINNING FACE}" * 200])
def test_long_keys_are_cut_between_characters(tmp_path, key):
    assert 508 <= len(container.record_key(7, key)) <= 511
    (found,) = read(write(tmp_path / "a", [Sample(key, {"image": b"", "label": 0})]))
    assert key.startswith(found.key) and len(found.key.encode()) > 498


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


def test_lmdb_can_add_to_what_was_written(tmp_path):
    path = write(tmp_path / "a", samples(1000))
    with lmdb.open(str(path), map_size=1 << 30) as environment, environment.begin(write=True) as txn:
        txn.put(b"00000000_", caffe_datum(b"first", 0))
    assert len(read(path)) == 1001 and read(path)[0].fields["image"] == b"first"


def test_locate_tells_where_the_value_lies(tmp_path):
    path = write(tmp_path / "a", samples(50))
    reader = container.Reader(path, BYTES)
    data = (path / "data.mdb").read_bytes()
    for index, sample in enumerate(samples(50)):
        file, offset = reader.locate(index)
        assert file == path / "data.mdb"
        assert data[offset:].startswith(b"".join(datum.encode(sample, BYTES)))
    reader.close()


@given(
    key_bytes=st.integers(4, 511),
    sizes=st.lists(st.sampled_from([0, 1, 9, 1500, 1519, 2029, 2030, 2031, 4080, 4081, 9000]), max_size=8),
    repeats=st.sampled_from([1, 5, 50, 51, 300]),
)
@given_example(key_bytes=511, sizes=[0], repeats=7)
@given_example(key_bytes=511, sizes=[0], repeats=50)  # eight leaves, one more than a branch has room for
@given_example(key_bytes=511, sizes=[0], repeats=344)  # a branch of branches
def test_the_package_lmdb_walks_any_tree(key_bytes, sizes, repeats, tmp_path_factory):
    """Every page is counted, every key is found by itself and in order."""
    folder = tmp_path_factory.mktemp("tree")
    records = {b"%04d" % i + b"k" * (key_bytes - 4): bytes([i % 251]) * size for i, size in enumerate(sizes * repeats)}
    tree = TreeWriter(folder / "data.mdb")
    for key, value in records.items():
        tree.put(key, [value], len(value))
    tree.finish()
    tree.close()
    with lmdb.open(str(folder), readonly=True, lock=False) as environment, environment.begin() as txn:
        assert list(txn.cursor()) == list(records.items())
        assert all(txn.get(key) == value for key, value in records.items())
        stat, last_page = environment.stat(), environment.info()["last_pgno"]
    assert stat["entries"] == len(records)
    assert stat["branch_pages"] + stat["leaf_pages"] + stat["overflow_pages"] + 2 == last_page + 1
    assert (folder / "data.mdb").stat().st_size == (last_page + 1) * stat["psize"]


def test_a_record_of_any_size_has_its_pages(tmp_path):
    image = bytes(range(256)) * (100 << 12)  # 100 MiB
    (found,) = read(write(tmp_path / "a", [Sample("a", {"image": image, "label": 1})]))
    assert found.fields["image"] == image


def test_two_readers_and_many_threads_share_a_file(tmp_path):
    written = samples(300)
    path = write(tmp_path / "a", written)
    readers = [container.Reader(path, IMAGE_CLASSIFICATION) for _ in range(2)]
    wrong: list[int] = []

    def check(reader: container.Reader) -> None:
        wrong.extend(i for i in range(300) if reader.read(i) != written[i])

    threads = [threading.Thread(target=check, args=(reader,)) for reader in readers * 3]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for reader in readers:
        reader.close()
    assert wrong == []


@pytest.mark.parametrize("make", [lambda path: path, lambda path: path.mkdir() or path])
def test_a_missing_file_is_a_storage_error(tmp_path, make):
    with pytest.raises(StorageError, match=r"a\.lmdb"):
        container.Reader(make(tmp_path / "a.lmdb"), BYTES)


def test_an_existing_shard_is_not_written_over(tmp_path):
    write(tmp_path / "a", samples(1), container.SingleFileWriter)
    for writer in (container.Writer, container.SingleFileWriter):
        with pytest.raises(FileExistsError):
            writer(tmp_path / "a", BYTES)


def test_a_refused_label_leaves_no_gap(tmp_path):
    writer = container.SingleFileWriter(tmp_path / "a", BYTES)
    with pytest.raises(SchemaError, match="'label'"):
        writer.write(Sample("big", {"image": b"", "label": 2**40}))
    writer.write(Sample("fits", {"image": b"", "label": 1}))
    writer.close()
    with lmdb.open(str(tmp_path / "a.lmdb"), subdir=False, readonly=True, lock=False) as environment:
        assert [key for key, _ in environment.begin().cursor()] == [b"00000000_fits"]


def test_a_full_disk_is_a_storage_error(tmp_path):
    script = """
import contextlib, pathlib, resource, sys
from dlio.errors import StorageError
from dlio.formats import lmdb
from dlio.sample import IMAGE_CLASSIFICATION, Sample
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
writer = lmdb.Writer(pathlib.Path(sys.argv[1]) / "a", IMAGE_CLASSIFICATION)
try:
    for i in range(1000):
        writer.write(Sample(str(i), {"image": bytes(20000), "label": i}))
except StorageError as error:
    assert "a.lmdb/data.mdb" in str(error), error
    with contextlib.suppress(StorageError):
        writer.close()
    sys.exit(42)
"""
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 42, done.stderr


def test_other_kinds_of_database_are_named(tmp_path):
    with lmdb.open(str(tmp_path / "named"), max_dbs=1) as environment:
        environment.open_db(b"images")
    with pytest.raises(CorruptRecordError, match=r"record 0.*named database"):
        container.Reader(tmp_path / "named", BYTES)
    path = write(tmp_path / "duplicates", [], container.SingleFileWriter)
    data = bytearray(path.read_bytes())
    for page in range(2):
        data[page * PAGE + 92] |= 4  # MDB_DUPSORT, which the package lmdb never sets for the unnamed database
    path.write_bytes(data)
    with pytest.raises(CorruptRecordError, match="several values"):
        container.Reader(path, BYTES)


def test_a_file_of_another_format_is_named(tmp_path):
    (tmp_path / "a").write_bytes(b"\x89HDF" * 9000)
    with pytest.raises(CorruptRecordError, match="no meta page of LMDB"):
        container.Reader(tmp_path / "a", BYTES)


def test_a_file_cut_short_is_refused_at_once(tmp_path):
    data = (write(tmp_path / "a", samples(300)) / "data.mdb").read_bytes()
    cut = tmp_path / "cut"
    for size in [0, 1, 100, PAGE, 2 * PAGE - 1, 2 * PAGE, len(data) // 2, len(data) - PAGE, len(data) - 1]:
        cut.write_bytes(data[:size])
        with pytest.raises(CorruptRecordError, match=r"cut: |cut, offset"):
            container.Reader(cut, BYTES)


def tree_pages(data: bytes) -> list[int]:
    heads = [(page, *struct.unpack_from("<QHH", data, page * PAGE)) for page in range(len(data) // PAGE)]
    return [page for page, number, _, flags in heads if number == page and flags in (1, 2, 8)]


def test_flipped_bits_in_the_tree_give_an_error_or_the_samples(tmp_path):
    """LMDB itself ends with SIGBUS on some of these files."""
    written = samples(150)
    data = (write(tmp_path / "a", written) / "data.mdb").read_bytes()
    generator = random.Random(7)
    outcomes = {"refused": 0, "whole": 0}
    for _ in range(400):
        damaged = bytearray(data)
        page = generator.choice(tree_pages(data))
        # half of the flips hit the head and the first nodes, where the structure is
        position = page * PAGE + generator.randrange(generator.choice([200, PAGE]))
        damaged[position] ^= 1 << generator.randrange(8)
        (tmp_path / "flipped").write_bytes(damaged)
        try:
            found = read(tmp_path / "flipped")
        except CorruptRecordError as error:
            assert error.path == str(tmp_path / "flipped")
            outcomes["refused"] += 1
        else:
            assert len(found) == len(written)
            # no checksum guards keys and the values within leaf pages: at most the sample that was hit differs
            assert sum(a != b for a, b in zip(found, written, strict=True)) <= 1
            outcomes["whole"] += 1
    assert min(outcomes.values()) > 20, outcomes


def test_a_page_that_is_its_own_child_is_refused(tmp_path):
    path = write(tmp_path / "a", samples(2000, largest=100), container.SingleFileWriter)
    data = bytearray(path.read_bytes())
    _, branch = max(struct.unpack_from("<QQQ", data, page * PAGE + 128)[::-2] for page in range(2))  # root, last, txn
    node = struct.unpack_from("<H", data, branch * PAGE + 16)[0]
    struct.pack_into("<I", data, branch * PAGE + node, branch)
    path.write_bytes(data)
    with pytest.raises(CorruptRecordError, match="is not the leaf page"):
        container.Reader(path, BYTES)


def test_an_overflow_page_that_is_another_names_the_record(tmp_path):
    path = write(tmp_path / "a", [Sample("a", {"image": bytes(9000), "label": 1})] * 3, container.SingleFileWriter)
    reader = container.Reader(path, BYTES)
    offset = reader.locate(1)[1]
    data = bytearray(path.read_bytes())
    data[offset - 16] ^= 1
    path.write_bytes(data)
    assert reader.read(0).fields["label"] == 1
    with pytest.raises(CorruptRecordError, match=f"record 1, offset {offset - 16}: expected overflow page"):
        reader.read(1)
    reader.close()
