"""LMDB as dlio writes it: the package `lmdb` reads it, equal samples give equal bytes."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import lmdb
import numpy as np
import pytest
from hypothesis import example as given_example
from hypothesis import given
from hypothesis import strategies as st

from dlio.dataset.schema import IMAGE_CLASSIFICATION, Sample, Schema
from dlio.errors import SchemaError
from dlio.formats import lmdb as container
from dlio.formats.layouts.lmdb_tree import TreeWriter
from dlio.formats.payloads import datum, example
from tests.formats.lmdb_shards import BYTES, caffe_datum, read, samples, single_file, write


@pytest.mark.parametrize("count", [0, 1, 2, 70, 5000])
@pytest.mark.parametrize("writer", [container.Writer, single_file])
def test_samples_come_back_with_their_keys(tmp_path, writer, count):
    written = samples(count, largest=3000)
    assert read(write(tmp_path / "a", written, writer)) == written


def test_a_shard_is_one_file_without_unused_pages(tmp_path):
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
    write(tmp_path / "a", samples(3), single_file)
    assert names_in(tmp_path) == ["a.lmdb"]


def test_equal_samples_give_equal_bytes(tmp_path):
    first, second = (write(tmp_path / name, samples(3000)) / "data.mdb" for name in "ab")
    assert first.read_bytes() == second.read_bytes()


@pytest.mark.parametrize("writer", [container.Writer, single_file])
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
        assert txn.get(b"00000000_a/b") == b"".join(example.encoder(schema)(written))
    (found,) = read(path, schema)
    assert found.key == "a/b" and found.fields["frames"] == [b"1", b""]
    np.testing.assert_array_equal(found.fields["label"], label, strict=True)


@pytest.mark.parametrize("key", ["k" * 600, "é" * 300, "x" + "é" * 300, "\N{GRINNING FACE}" * 200])
def test_long_keys_are_cut_between_characters(tmp_path, key):
    assert 508 <= len(container.record_key(7, key)) <= 511
    (found,) = read(write(tmp_path / "a", [Sample(key, {"image": b"", "label": 0})]))
    assert key.startswith(found.key) and len(found.key.encode()) > 498


def test_locate_tells_where_the_value_lies(tmp_path):
    path = write(tmp_path / "a", samples(50))
    reader = container.Reader(path, BYTES)
    data = (path / "data.mdb").read_bytes()
    for index, sample in enumerate(samples(50)):
        file, offset = reader.locate(index)
        assert file == path / "data.mdb"
        assert data[offset:].startswith(b"".join(datum.encoder(BYTES)(sample)))
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


def test_an_existing_shard_is_not_written_over(tmp_path):
    write(tmp_path / "a", samples(1), single_file)
    for writer in (container.Writer, single_file):
        with pytest.raises(FileExistsError):
            writer(tmp_path / "a", BYTES)


def test_a_refused_label_leaves_no_gap(tmp_path):
    writer = single_file(tmp_path / "a", BYTES)
    with pytest.raises(SchemaError, match="'label'"):
        writer.write(Sample("big", {"image": b"", "label": 2**40}))
    writer.write(Sample("fits", {"image": b"", "label": 1}))
    writer.close()
    with lmdb.open(str(tmp_path / "a.lmdb"), subdir=False, readonly=True, lock=False) as environment:
        assert [key for key, _ in environment.begin().cursor()] == [b"00000000_fits"]
