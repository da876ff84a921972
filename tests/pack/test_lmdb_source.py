"""Databases of other tools whose values are images: labels from keys, from a list, or none."""

from __future__ import annotations

import lmdb
import pytest

import dlio
from dlio.errors import SourceError
from dlio.pack.inspect.image_header import LARGE_BYTES
from dlio.pack.sources import open_source
from dlio.pack.sources.lmdb import _key_and_label
from tests.helpers.images import image
from tests.pack.index.test_lmdb import caffe_datum


def write(path, values, map_size=1 << 26, **options):
    with lmdb.open(str(path), map_size=map_size, **options) as environment, environment.begin(write=True) as txn:
        for key, value in values.items():
            txn.put(key.encode(), value)
    return path


def packed(source, tmp_path, **options):
    manifest = dlio.pack(source, tmp_path / "out", engine="serial", **options)
    return manifest, list(dlio.show(manifest, range(manifest.num_samples)))


@pytest.mark.parametrize("subdir", [True, False])
def test_the_label_is_the_keys_folder(tmp_path, subdir):
    images = {f"{name}/{n}.png": image(n) for name in ("dog", "cat") for n in range(2)}
    manifest, found = packed(write(tmp_path / "db", images, subdir=subdir), tmp_path)
    assert manifest.class_names == ("cat", "dog") and manifest.origin["source"] == "lmdb"
    assert {shown.key: (shown.picture, shown.label) for shown in found} == {
        key: (data, key[:3]) for key, data in images.items()
    }


def test_labels_come_from_a_list_and_other_keys_are_left_out(tmp_path):
    values = {f"image-{n:09d}": image(n) for n in range(4)} | {"num-samples": b"4", "label-000000001": b"word"}
    path = write(tmp_path / "db", values)
    (tmp_path / "l.csv").write_text("key,label\n" + "".join(f"image-{n:09d},{'ab'[n % 2]}\n" for n in range(3)))
    source = open_source(path, match="image-*", labels=str(tmp_path / "l.csv"))
    manifest, found = packed(source, tmp_path, on_error="skip")
    assert [shown.label for shown in found] == ["a", "b", "a"]
    assert [name for name, _ in manifest.skipped] == ["image-000000003"]
    with pytest.raises(SourceError, match="has no line for the key 'image-000000003'"):
        dlio.pack(source, tmp_path / "other", engine="serial")


def test_a_line_of_a_list_may_have_many_separators():
    assert _key_and_label("a b/1.png, \tdog") == ("a b/1.png", "dog")
    assert _key_and_label(f"a{',' * 1_000_000}b,") == ("a" + "," * 1_000_000 + "b", "")


def test_whole_numbers_are_labels_and_keys_without_folders_need_none(tmp_path):
    path = write(tmp_path / "db", {f"{n}": image(n) for n in range(3)})
    assert dlio.pack(path, tmp_path / "bare", engine="serial").schema.types() == {"image": "bytes"}
    (tmp_path / "l.txt").write_text("0 5\n1 7\n2 5\n")
    _, found = packed(open_source(path, labels=str(tmp_path / "l.txt")), tmp_path)
    assert [shown.label for shown in found] == ["5", "7", "5"]


@pytest.mark.parametrize("value", [caffe_datum(b"x" * 20, 1), b"\x80\x04\x95 a pickle", b""])
def test_a_database_without_images_says_what_to_do(tmp_path, value):
    with pytest.raises(SourceError, match="dlio index --format lmdb"):
        dlio.pack(write(tmp_path / "db", {"a": value}), tmp_path / "out", engine="serial")


def test_a_cut_database_is_named(tmp_path):
    path = write(tmp_path / "db", {f"{n}": image(n) for n in range(300)}) / "data.mdb"
    path.write_bytes(path.read_bytes()[: 3 << 12])
    with pytest.raises(SourceError, match=r"data\.mdb"):
        dlio.pack(open_source(path.parent, name="lmdb"), tmp_path / "out", engine="serial")


def test_a_large_value_that_is_no_image_is_refused_by_its_first_bytes(tmp_path):
    path = write(tmp_path / "db", {"0": image(0), "1": bytes(LARGE_BYTES + 1)}, map_size=1 << 27, sync=False)
    source = open_source(path, name="lmdb")
    with source.reader(source.listing()) as read:
        assert read(0).fields["image"] == image(0)
        with pytest.raises(SourceError, match="cannot read '1': it is not an image"):
            read(1)
