"""`dlio index`: shards of other tools become a data set where they are, and nothing of them is changed."""

from __future__ import annotations

import json
import struct
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import h5py
import lmdb
import numpy as np
import pytest
import webdataset as wds
from hypothesis import given, settings
from hypothesis import strategies as st

import dlio
from dlio import formats
from dlio.cli import main
from dlio.errors import CorruptRecordError, SchemaError, SourceError, StorageError, UsageError
from dlio.formats import lmdb as lmdb_format
from dlio.formats.payloads import example
from dlio.formats.payloads._messages import message
from dlio.images import CenterCrop
from dlio.loaders.dataset import PackedSamples
from dlio.manifest import NAME, PARTIAL_NAME, Manifest
from dlio.pack.adopt import index, names
from dlio.pack.sources import image_folder, packed
from dlio.sample import Sample, Schema
from dlio.sample_table import SUFFIX
from tests.images import image
from tests.pack.conftest import content, samples

pytestmark = pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")  # webdataset leaves its tars open

JPEGS = [image(number, "JPEG") for number in range(9)]


def adopt(folder: Path, name: str, **options) -> tuple[Manifest, list[tuple[str, dict]]]:
    """Indexes a folder, makes sure that it is whole and unchanged, and returns its manifest and its samples."""
    before = content(folder)
    index(folder, format=name, workers=1, **options)
    after = content(folder)
    assert before.items() <= after.items()
    assert all(path == NAME or path.endswith(SUFFIX) for path in after.keys() - before.keys())
    assert main(["verify", str(folder), "--quiet"]) == 0
    return Manifest.load(folder), samples(folder)


def batch(root: Path, indices: list[int]) -> dict:
    """Returns a decoded batch as the loaders have it."""
    with closing(PackedSamples(root, CenterCrop(8))) as packed_samples:
        return packed_samples.batch(indices, 0)


def write_records(path: Path, name: str, records: list[tuple[str, dict]], types: dict[str, str]) -> Path:
    """Writes a shard called `path`, whatever its name, without an index."""
    schema, container = Schema.of(types), formats.load(name)
    stem = path.parent / "temporary"
    with closing(container.Writer(stem, schema)) as writer:
        for key, fields in records:
            writer.write(schema.check(Sample(key, fields)))
    stem.with_name(f"temporary{container.SUFFIX}").rename(path)
    stem.with_suffix(".idx").unlink()
    return path


def photo_records(start: int, stop: int) -> list[tuple[str, dict]]:
    """Returns JPEGs with labels 0, 1 and 2."""
    return [(f"photo {number}.jpg", {"image": JPEGS[number], "label": number % 3}) for number in range(start, stop)]


PAIR = {"image": "bytes", "label": "int64"}


class TestFinding:
    """Which files are shards, and of one set."""

    def test_shards_of_any_name_in_numeric_order(self, tmp_path):
        for start, name in [(4, "part-r-10"), (0, "part-r-1"), (2, "part-r-9")]:
            write_records(tmp_path / name, "tfrecord", photo_records(start, start + 2), PAIR)
        (tmp_path / "_SUCCESS").write_bytes(b"")
        (tmp_path / "README.md").write_text("mine")
        manifest, found = adopt(tmp_path, "tfrecord")
        assert [shard.name for shard in manifest.shards] == ["part-r-1", "part-r-9", "part-r-10"]
        assert found == photo_records(0, 6)

    def test_an_index_is_read_and_staged_too(self, tmp_path):
        dlio_shard = write_records(tmp_path / "train.tfrecord", "tfrecord", photo_records(0, 3), PAIR)
        with closing(formats.load("tfrecord").Reader(dlio_shard, Schema.of(PAIR))) as reader:
            offsets = [reader.locate(number)[1] for number in range(3)] + [dlio_shard.stat().st_size]
        lines = [f"{a} {b - a}\n" for a, b in pairwise(offsets)]
        (tmp_path / "train.idx").write_text("".join(lines))
        manifest, _ = adopt(tmp_path, "tfrecord")
        assert [file.name for file in manifest.shards[0].files] == [
            "train.tfrecord",
            "train.idx",
            f"train.tfrecord{SUFFIX}",
        ]

    def test_several_sets_are_never_mixed(self, tmp_path):
        for name, start in [("train-00000-of-00002", 0), ("train-00001-of-00002", 2), ("validation-00000-of-00001", 4)]:
            write_records(tmp_path / name, "tfrecord", photo_records(start, start + 2), PAIR)
        before = content(tmp_path)
        with pytest.raises(UsageError, match=r"several sets .*train-00000-of-00002 \(2\), validation.*--match"):
            index(tmp_path, format="tfrecord")
        assert content(tmp_path) == before
        _, found = adopt(tmp_path, "tfrecord", match="train-*")
        assert found == photo_records(0, 4)

    def test_a_set_with_missing_parts_is_refused(self, tmp_path):
        for number in (0, 3):
            write_records(tmp_path / f"train-{number:05d}-of-00004", "tfrecord", photo_records(number, 4), PAIR)
        with pytest.raises(SourceError, match="holds 2 of 4 shards of train, without 1, 2"):
            index(tmp_path, format="tfrecord")
        _, found = adopt(tmp_path, "tfrecord", match="*")
        assert len(found) == 5

    @pytest.mark.parametrize("name", names())
    def test_an_empty_folder_and_a_missing_one(self, tmp_path, name):
        (tmp_path / "notes.txt").write_text("none of these")
        with pytest.raises(SourceError, match="holds no shards"):
            index(tmp_path, format=name)
        for path in ("none", "notes.txt"):
            with pytest.raises(UsageError, match="is no folder"):
                index(tmp_path / path, format=name)

    @pytest.mark.parametrize("data", [b"", b"half", b"\x1f\x8b\x08\0 compressed as a whole"])
    def test_a_file_that_is_only_called_a_shard_is_named(self, tmp_path, data):
        for name in ("train-00001-of-00002", "b.tfrecord"):
            write_records(tmp_path / "train-00000-of-00002", "tfrecord", photo_records(0, 2), PAIR)
            (tmp_path / name).write_bytes(data)
            with pytest.raises(CorruptRecordError, match=f"{name}.* has the name of a shard and is none"):
                index(tmp_path, format="tfrecord")
            (tmp_path / name).unlink()

    def test_a_shard_cut_short_is_named_and_nothing_is_left(self, tmp_path):
        for number in range(3):
            path = write_records(tmp_path / f"part-{number}", "tfrecord", photo_records(number, number + 2), PAIR)
        path.write_bytes(path.read_bytes()[:-5])
        before = content(tmp_path)
        with pytest.raises(CorruptRecordError, match=r"part-2, record 1, offset \d+: .*cut off"):
            index(tmp_path, format="tfrecord", workers=2)
        assert content(tmp_path) == before

    def test_a_folder_of_links_where_the_shards_may_not_be_touched(self, tmp_path):
        (tmp_path / "theirs").mkdir()
        (tmp_path / "mine").mkdir()
        write_records(tmp_path / "theirs/val.tfrecord", "tfrecord", photo_records(0, 3), PAIR)
        (tmp_path / "mine/val.tfrecord").symlink_to("../theirs/val.tfrecord")
        _, found = adopt(tmp_path / "mine", "tfrecord")
        assert found == photo_records(0, 3)
        assert [path.name for path in (tmp_path / "theirs").iterdir()] == ["val.tfrecord"]


class TestDataSets:
    """Folders that are data sets already."""

    def test_indexing_twice_needs_overwrite_and_gives_the_same(self, tmp_path):
        write_records(tmp_path / "a.tfrecord", "tfrecord", photo_records(0, 3), PAIR)
        adopt(tmp_path, "tfrecord")
        before = content(tmp_path)
        with pytest.raises(UsageError, match=r"has been indexed.*--overwrite"):
            index(tmp_path, format="tfrecord")
        index(tmp_path, format="tfrecord", overwrite=True)
        assert content(tmp_path) == before

    def test_what_dlio_has_packed_needs_no_index(self, photos, tmp_path):
        dlio.pack(image_folder(photos), tmp_path / "out", engine="serial")
        before = content(tmp_path / "out")
        for overwrite in (False, True):
            with pytest.raises(UsageError, match="needs no index"):
                index(tmp_path / "out", format="tfrecord", overwrite=overwrite)
        (tmp_path / "out" / NAME).rename(tmp_path / "out" / PARTIAL_NAME)
        with pytest.raises(UsageError, match="is being packed"):
            index(tmp_path / "out", format="tfrecord")
        (tmp_path / "out" / PARTIAL_NAME).rename(tmp_path / "out" / NAME)
        assert content(tmp_path / "out") == before

    @pytest.mark.parametrize("name", formats.names())
    def test_a_lost_manifest_is_made_again_from_the_shards(self, photos, tmp_path, name):
        out = tmp_path / "out"
        dlio.pack(image_folder(photos), out, format=name, num_shards=3, engine="serial")
        before = samples(out)
        (out / NAME).unlink()
        _, found = adopt(out, name)
        assert [fields for _, fields in found] == [fields for _, fields in before]
        if name in ("tfrecord", "hdf5", "lmdb"):
            assert [key for key, _ in found] == [key for key, _ in before]

    def test_pack_with_overwrite_never_removes_shards_of_others(self, photos, tmp_path):
        (tmp_path / "theirs").mkdir()
        write_records(tmp_path / "theirs/a.tfrecord", "tfrecord", photo_records(0, 3), PAIR)
        adopt(tmp_path / "theirs", "tfrecord")
        before = content(tmp_path / "theirs")
        with pytest.raises(UsageError, match="shards that other tools made, which dlio does not remove"):
            dlio.pack(image_folder(photos), tmp_path / "theirs", overwrite=True, engine="serial")
        assert content(tmp_path / "theirs") == before

    def test_it_can_be_converted(self, tmp_path):
        (tmp_path / "theirs").mkdir()
        write_records(tmp_path / "theirs/a.tfrecord", "tfrecord", photo_records(0, 6), PAIR)
        _, found = adopt(tmp_path / "theirs", "tfrecord")
        dlio.pack(packed(tmp_path / "theirs"), tmp_path / "out", format="webdataset", engine="serial")
        assert samples(tmp_path / "out") == found


class TestKeys:
    """Keys are distinct in the whole data set."""

    @settings(max_examples=20, deadline=None)
    @given(st.lists(st.lists(st.sampled_from(["", "a", "b", "part/1", "é\0"]), max_size=4), min_size=1, max_size=3))
    def test_the_first_record_of_a_key_keeps_it(self, tmp_path_factory, shards):
        root = tmp_path_factory.mktemp("keys")
        for number, keys in enumerate(shards):
            records = [(key, {"image": b"x", "label": 1}) for key in keys] or [("only", {"image": b"x", "label": 1})]
            write_records(root / f"part {number}", "tfrecord", records, PAIR)
        _, found = adopt(root, "tfrecord")
        seen: set[str] = set()
        for (key, _), (shard, number, own) in zip(found, _places(shards), strict=True):
            expected = own.replace("\0", "\\x00")
            assert key == (expected if expected and expected not in seen else f"part {shard}/{number:06d}")
            seen.add(expected)
        assert len({key for key, _ in found}) == len(found)

    def test_shards_that_all_count_from_zero(self, tmp_path):
        with wds.ShardWriter(str(tmp_path / "set-%02d.tar"), maxcount=2, verbose=0) as writer:
            for number in range(6):
                writer.write({"__key__": f"{number % 2:04d}", "jpg": JPEGS[number], "cls": number})
        _, found = adopt(tmp_path, "webdataset")
        assert [key for key, _ in found] == [
            *("0000", "0001", "set-01.tar/000000", "set-01.tar/000001", "set-02.tar/000000", "set-02.tar/000001")
        ]
        assert [fields["label"] for _, fields in found] == list(range(6))


def _places(shards: list[list[str]]) -> list[tuple[int, int, str]]:
    return [(shard, number, key) for shard, keys in enumerate(shards) for number, key in enumerate(keys or ["only"])]


class TestTFRecord:
    """Examples; those that TensorFlow writes are in test_adopt_tensorflow.py."""

    def write(self, path: Path, records: list[dict]) -> None:
        parts = []
        for features in records:
            record = message("Example")()
            record.features.SetInParent()
            for name, value in features.items():
                feature = record.features.feature.add(key=name).value
                kind = {bytes: "bytes_list", float: "float_list", int: "int64_list"}[type(value[0])] if value else None
                if kind:
                    getattr(feature, kind).value.extend(value)
            parts.append(record.SerializeToString())
        masked_crc = formats.load("tfrecord").masked_crc
        frames = [
            struct.pack("<QI", len(data), masked_crc(struct.pack("<Q", len(data))))
            + data
            + struct.pack("<I", masked_crc(data))
            for data in parts
        ]
        path.write_bytes(b"".join(frames))

    def test_features_of_any_name_become_fields(self, tmp_path):
        records = [
            {"image/height": [n + 1], "1st": [b"a", b"b"][: n % 2 + 1], "box": [0.5, 1.0], "points": [1.0] * (n + 1)}
            for n in range(4)
        ]
        self.write(tmp_path / "a", records)
        manifest, found = adopt(tmp_path, "tfrecord")
        assert manifest.schema.types() == {
            "_1st": "bytes[]",
            "box": "float32[2]",
            "image_height": "int64",
            "points": "float32[]",
        }
        assert [key for key, _ in found] == [f"a/{n:06d}" for n in range(4)]
        assert found[2][1]["points"].tolist() == [1, 1, 1]
        assert (found[3][1]["image_height"], found[3][1]["_1st"]) == (4, [b"a", b"b"])

    def test_image_and_label_by_these_names(self, tmp_path):
        self.write(tmp_path / "a", [{"image": [JPEGS[n]], "label": [n]} for n in range(4)])
        manifest, found = adopt(tmp_path, "tfrecord")
        assert manifest.schema.is_image_classification
        assert [fields["label"] for _, fields in found] == [0, 1, 2, 3]
        assert batch(tmp_path, [2, 0])["image"].shape == (2, 3, 8, 8)

    @pytest.mark.parametrize(
        ("records", "problem"),
        [
            ([{"a": [1]}, {"a": [1], "b": [2]}], "1 of the first 2 records have 'b'"),
            ([{"a": [1]}, {"a": [1.5]}], "'a' is float32.*, int64"),
            ([{"a": []}], "'a' is empty"),
            ([{}], "hold nothing"),
        ],
    )
    def test_records_that_differ_need_a_schema(self, tmp_path, records, problem):
        self.write(tmp_path / "a", records)
        with pytest.raises(SchemaError, match=f"{problem}.*--schema"):
            index(tmp_path, format="tfrecord")

    def test_a_schema_may_take_a_part_of_the_features(self, tmp_path):
        self.write(tmp_path / "a", [{"a": [1]}, {"a": [2], "b": [2]}])
        _, found = adopt(tmp_path, "tfrecord", schema=Schema.of({"a": "int64"}))
        assert [fields for _, fields in found] == [{"a": 1}, {"a": 2}]

    def test_a_later_record_that_differs_is_named(self, tmp_path):
        self.write(tmp_path / "a", [{"a": [1]}] * 150 + [{"a": [1, 2]}])
        with pytest.raises(CorruptRecordError, match=r"a, record 150, offset [0-9]+: .*2 values.*--schema"):
            index(tmp_path, format="tfrecord")

    def test_class_names_and_label_offset(self, tmp_path):
        def imagenet(label: int, **features) -> dict:
            return {example.IMAGE: [JPEGS[0]], example.LABEL: [label]} | {
                f"image/{name}": value for name, value in features.items()
            }

        records = [imagenet(label, **{"class/text": [f"class {label}".encode()]}) for label in (1, 2, 4, 1)]
        self.write(tmp_path / "a", records)
        with pytest.raises(SchemaError, match="record 0: the label is 1, less than the label offset 2"):
            index(tmp_path, format="tfrecord", label_offset=2)
        manifest, _ = adopt(tmp_path, "tfrecord", label_offset=1)
        assert manifest.class_names == ("class 1", "class 2", "", "class 4")
        assert manifest.schema.class_name(4) == "class 4"
        assert batch(tmp_path, [0, 2])["label"].tolist() == [0, 3]

    def test_a_label_offset_needs_labels(self, tmp_path):
        self.write(tmp_path / "a", [{"a": [1]}])
        with pytest.raises(SchemaError, match="needs one whole label"):
            index(tmp_path, format="tfrecord", label_offset=1)


class TestRecordIO:
    """im2rec's files, built from the format's definition."""

    def write(self, stem: Path, labels: list, *, flags: bool = False, ids: list[int] | None = None) -> None:
        data, index_lines = b"", []
        for number, label in enumerate(labels):
            ident = ids[number] if ids else number
            vector = np.atleast_1d(np.array(label, "<f4"))
            header = (
                struct.pack("<IfQQ", len(vector), 0, ident, 0) + vector.tobytes()
                if flags
                else struct.pack("<IfQQ", 0, float(label), ident, 0)
            )
            record = header + JPEGS[number]
            index_lines.append(f"{ident}\t{len(data)}\n")
            data += struct.pack("<II", 0xCED7230A, len(record)) + record + bytes(-len(record) % 4)
        stem.with_suffix(".rec").write_bytes(data)
        stem.with_suffix(".idx").write_text("".join(index_lines))

    @pytest.mark.parametrize("with_index", [True, False])
    def test_keys_come_from_the_list(self, tmp_path, with_index):
        ids = [30, 10, 20]
        self.write(tmp_path / "train", [2.0, 0.0, 1.0], ids=ids)
        lines = ["10\t0\tcat/a b.jpg\n", "20\t1\tdog/é.jpg\n", "30\t2.000000\towl/c.jpg\n"]
        (tmp_path / "train.lst").write_text("".join(lines))
        if not with_index:
            (tmp_path / "train.idx").unlink()
        manifest, found = adopt(tmp_path, "recordio")
        assert manifest.schema.is_image_classification
        keys = ["owl/c.jpg", "cat/a b.jpg", "dog/é.jpg"]
        assert found == [(key, {"image": JPEGS[n], "label": (2, 0, 1)[n]}) for n, key in enumerate(keys)]

    def test_without_a_list_keys_are_numbers_of_the_shard(self, tmp_path):
        self.write(tmp_path / "train", [2.0, 0.5])
        manifest, found = adopt(tmp_path, "recordio")
        assert manifest.schema["label"].dtype == "float32"
        assert [(key, fields["label"]) for key, fields in found] == [("train.rec/000000", 2), ("train.rec/000001", 0.5)]

    def test_vectors_of_labels(self, tmp_path):
        self.write(tmp_path / "train", [[1, 2.5], [3, 4]], flags=True)
        manifest, found = adopt(tmp_path, "recordio")
        assert manifest.schema.types() == {"image": "bytes", "label": "float32[2]"}
        assert [fields["label"].tolist() for _, fields in found] == [[1, 2.5], [3, 4]]

    def test_records_with_different_numbers_of_labels_are_refused(self, tmp_path):
        self.write(tmp_path / "train", [[1, 2.5], [3]], flags=True)
        with pytest.raises(SchemaError, match=r"different numbers of labels, \[1, 2\]"):
            index(tmp_path, format="recordio")

    @pytest.mark.parametrize(
        ("text", "problem"), [("0\t1\ta.jpg\n", "no line for the record of id 1"), ("a.jpg 3\n", "train.lst, line 1")]
    )
    def test_a_list_that_does_not_fit_is_named(self, tmp_path, text, problem):
        self.write(tmp_path / "train", [1, 2])
        (tmp_path / "train.lst").write_text(text)
        with pytest.raises(SourceError, match=problem):
            index(tmp_path, format="recordio")

    def test_train_and_val_side_by_side(self, tmp_path):
        self.write(tmp_path / "train", [1, 2])
        self.write(tmp_path / "val", [3])
        with pytest.raises(UsageError, match=r"train\.rec \(1\), val\.rec \(1\)"):
            index(tmp_path, format="recordio")
        _, found = adopt(tmp_path, "recordio", match="val.rec")
        assert len(found) == 1


def caffe_datum(data: bytes, label: int, shape: tuple[int, int, int] | None = None) -> bytes:
    """Returns a Datum as convert_imageset writes it, encoded, or raw of shape C x H x W; sizes up to 127 of a field."""
    size = bytes([len(data) & 0x7F | 0x80, len(data) >> 7]) if len(data) > 127 else bytes([len(data)])
    dims = b"".join(bytes([number << 3, dim]) for number, dim in enumerate(shape or (), 1))
    return dims + b"\x22" + size + data + bytes([5 << 3, label, 7 << 3, shape is None])


class TestLMDB:
    """Caffe's databases."""

    def write(self, path: Path, values: list[bytes], **options) -> None:
        with lmdb.open(str(path), map_size=1 << 30, **options) as environment, environment.begin(write=True) as txn:
            for number, value in enumerate(values):
                txn.put(f"{number:08d}_cat/{number}.jpg".encode(), value)

    @pytest.mark.parametrize("layout", ["folder", "file", "the folder itself"])
    def test_encoded_images(self, tmp_path, layout):
        path = tmp_path if layout == "the folder itself" else tmp_path / "train_lmdb"
        self.write(path, [caffe_datum(JPEGS[n], n) for n in range(3)], subdir=layout != "file")
        (path / "lock.mdb" if path.is_dir() else tmp_path / "train_lmdb-lock").unlink()
        manifest, found = adopt(tmp_path, "lmdb")
        assert manifest.schema.is_image_classification
        assert found == [(f"cat/{n}.jpg", {"image": JPEGS[n], "label": n}) for n in range(3)]
        assert batch(tmp_path, [1])["label"].tolist() == [1]

    def test_raw_images_of_one_size_and_of_several(self, tmp_path):
        self.write(tmp_path / "same_lmdb", [caffe_datum(bytes(range(24)), 1, (3, 2, 4))] * 2)
        manifest, found = adopt(tmp_path, "lmdb")
        assert manifest.schema.types() == {"image": "uint8[2,4,3]", "label": "int64"}
        assert found[0][1]["image"][0, 0].tolist() == [16, 8, 0]  # Caffe's BGR planes, as RGB
        (tmp_path / "sizes").mkdir()
        values = [caffe_datum(bytes(24), 1, (3, 2, 4)), caffe_datum(bytes(12), 1, (3, 2, 2))]
        self.write(tmp_path / "sizes/x_lmdb", values)
        assert adopt(tmp_path / "sizes", "lmdb")[0].schema.types()["image"] == "uint8[2,?,3]"

    def test_train_and_test_side_by_side(self, tmp_path):
        for name in ("train_lmdb", "test_lmdb"):
            self.write(tmp_path / name, [caffe_datum(JPEGS[0], 1)])
        with pytest.raises(UsageError, match="several sets"):
            index(tmp_path, format="lmdb")
        assert len(adopt(tmp_path, "lmdb", match="train*")[1]) == 1

    def test_values_of_other_kinds_are_named(self, tmp_path):
        self.write(tmp_path / "x", [b"\x80\x04\x95 a pickle"])
        with pytest.raises(SchemaError, match=r"data\.mdb, record 0 is neither a Datum with an image nor an Example"):
            index(tmp_path, format="lmdb")

    def test_a_single_file_of_ours(self, tmp_path):
        schema = Schema.of({"words": "str[]", "label": "int64"})
        with closing(lmdb_format.SingleFileWriter(tmp_path / "a", schema)) as writer:
            writer.write(Sample("k", {"words": ["x", "y"], "label": 3}))
        _, found = adopt(tmp_path, "lmdb")
        assert found == [("k", {"words": [b"x", b"y"], "label": 3})]


class TestHDF5:
    """Files as people write them with h5py."""

    @pytest.mark.parametrize(("images", "labels"), [("image", "label"), ("images", "labels"), ("x", "y")])
    def test_encoded_images_as_arrays_of_varying_length(self, tmp_path, images, labels):
        with h5py.File(tmp_path / "train.hdf5", "w") as file:
            column = file.create_dataset(images, (4,), dtype=h5py.vlen_dtype(np.uint8))
            for number in range(4):
                column[number] = np.frombuffer(JPEGS[number], "uint8")
            file[labels] = np.arange(4, dtype="uint8")
            file["class_weights"] = np.zeros(7)
        manifest, found = adopt(tmp_path, "hdf5")
        assert manifest.schema.is_image_classification
        assert found == [(f"train.hdf5/{n:06d}", {"image": JPEGS[n], "label": n}) for n in range(4)]
        assert batch(tmp_path, [3])["label"].tolist() == [3]

    def test_plain_arrays_as_caffe_reads_them(self, tmp_path):
        data = np.arange(48, dtype="float32").reshape(2, 3, 2, 4)
        for number in range(2):
            with h5py.File(tmp_path / f"train{number}.h5", "w") as file:
                file["data"] = data + number
                file.create_dataset("label", data=np.array([1, 2], "float32"), chunks=(1,), compression="gzip")
        manifest, found = adopt(tmp_path, "hdf5")
        assert manifest.schema.types() == {"image": "float32[3,2,4]", "label": "float32"}
        assert [fields["label"] for _, fields in found] == [1, 2, 1, 2]
        np.testing.assert_array_equal(found[3][1]["image"], data[1] + 1)

    def test_files_of_other_layouts_are_named(self, tmp_path):
        with h5py.File(tmp_path / "a.h5", "w") as file:
            file["train/images"] = np.zeros((3, 2))
        with pytest.raises(SchemaError, match=r"a\.h5 has no datasets at its root, only \['train'\]"):
            index(tmp_path, format="hdf5")
        with h5py.File(tmp_path / "a.h5", "w") as file:
            file["image"] = np.zeros(3, dtype=[("a", "i4"), ("b", "f4")])
        with pytest.raises(SchemaError, match=r"a\.h5: the dataset 'image' holds .*numbers, uint8 and strings"):
            index(tmp_path, format="hdf5")


class TestWebDataset:
    """Tars of the package webdataset."""

    def test_images_with_classes_and_more(self, tmp_path):
        array = np.arange(6, dtype="int16").reshape(2, 3)
        with wds.ShardWriter(str(tmp_path / "train-%04d.tar"), maxcount=2, verbose=0) as writer:
            for n in range(5):
                kind, data = ("png", image(n)) if n % 2 else ("jpg", JPEGS[n])
                writer.write(
                    {"__key__": f"cat/{n}", kind: data, "cls": n, "json": {"n": n}, "npy": array, "seg.png": image(n)}
                )
        manifest, found = adopt(tmp_path, "webdataset")
        assert manifest.schema.types() == {
            "image": "bytes",
            "label": "int64",
            "json": "str",
            "npy": "int16[2,3]",
            "seg": "bytes",
        }
        assert [key for key, _ in found] == [f"cat/{n}" for n in range(5)]
        assert [fields["image"] for _, fields in found] == [image(n) if n % 2 else JPEGS[n] for n in range(5)]
        assert json.loads(found[4][1]["json"]) == {"n": 4}

    def test_a_schema_takes_what_training_needs(self, tmp_path):
        with wds.TarWriter(str(tmp_path / "a.tar")) as writer:
            for n in range(3):
                writer.write({"__key__": str(n), "jpg": JPEGS[n], "cls": n, **({"txt": "x"} if n else {})})
        with pytest.raises(CorruptRecordError, match=r"a\.tar, record 0: it has no file for the field 'txt'.*--schema"):
            index(tmp_path, format="webdataset")
        adopt(tmp_path, "webdataset", schema=Schema.of(PAIR))
        assert batch(tmp_path, [2])["label"].tolist() == [2]

    def test_two_images_a_sample_keep_their_extensions(self, tmp_path):
        with wds.TarWriter(str(tmp_path / "a.tar")) as writer:
            writer.write({"__key__": "k", "jpg": JPEGS[0], "png": image(1)})
        _, found = adopt(tmp_path, "webdataset")
        assert found == [("k", {"jpg": JPEGS[0], "png": image(1)})]


def write_mds(path: Path, columns: dict[str, tuple[str, int | None]], rows: list[list[bytes]]) -> dict:
    """Writes an MDS shard as streaming's MDSWriter lays it out, and returns its entry of the index."""
    config = {
        "column_encodings": [encoding for encoding, _ in columns.values()],
        "column_names": list(columns),
        "column_sizes": [size for _, size in columns.values()],
        "compression": None,
        "format": "mds",
        "hashes": [],
        "size_limit": 1 << 26,
        "version": 2,
    }
    text = json.dumps(config, sort_keys=True).encode()
    sizes = [size for _, size in columns.values()]
    bodies = []
    for row in rows:
        head = b"".join(struct.pack("<I", len(value)) for value, size in zip(row, sizes, strict=True) if size is None)
        bodies.append(head + b"".join(row))
    offsets = np.cumsum([4 + 4 * (len(rows) + 1) + len(text), *map(len, bodies)]).astype("<u4")
    path.write_bytes(struct.pack("<I", len(rows)) + offsets.tobytes() + text + b"".join(bodies))
    raw = {"basename": path.name, "bytes": path.stat().st_size, "hashes": {}}
    return config | {"raw_data": raw, "samples": len(rows), "zip_data": None}


MDS_COLUMNS = {"class": ("int", 8), "image": ("jpeg", None), "note": ("str", None), "box": ("ndarray:int16:2,2", 8)}


class TestMDS:
    """Folders of MosaicML Streaming."""

    def write(self, root: Path, counts: list[int]) -> None:
        entries, number = [], 0
        for shard, count in enumerate(counts):
            rows = [
                [struct.pack("<q", n), JPEGS[n], f"é{n}".encode(), np.full((2, 2), n, "<i2").tobytes()]
                for n in range(number, number + count)
            ]
            entries.append(write_mds(root / f"shard.{shard:05d}.mds", MDS_COLUMNS, rows))
            number += count
        (root / "index.json").write_text(json.dumps({"shards": entries, "version": 2}))

    def test_columns_become_fields(self, tmp_path):
        self.write(tmp_path, [2, 3])
        manifest, found = adopt(tmp_path, "mds")
        assert manifest.schema.types() == {"image": "bytes", "label": "int64", "box": "int16[2,2]", "note": "str"}
        assert [(fields["label"], fields["note"], fields["image"]) for _, fields in found] == [
            (n, f"é{n}", JPEGS[n]) for n in range(5)
        ]
        assert found[4][1]["box"].tolist() == [[4, 4], [4, 4]]
        assert [key for key, _ in found] == [
            f"shard.0000{shard}.mds/00000{n}" for shard, n in [(0, 0), (0, 1), (1, 0), (1, 1), (1, 2)]
        ]

    def test_it_trains_and_converts(self, tmp_path):
        (tmp_path / "mds").mkdir()
        self.write(tmp_path / "mds", [2, 3])
        adopt(tmp_path / "mds", "mds", schema=Schema.of(PAIR))
        assert batch(tmp_path / "mds", [4, 0])["label"].tolist() == [4, 0]
        dlio.pack(packed(tmp_path / "mds"), tmp_path / "out", format="tfrecord", engine="serial")
        assert samples(tmp_path / "out") == samples(tmp_path / "mds")
        with pytest.raises(SchemaError, match=r"dlio reads MDS.*formats that can: .*tfrecord"):
            dlio.pack(packed(tmp_path / "out"), tmp_path / "back", format="mds", engine="serial")

    def test_a_shard_of_the_index_that_is_not_there_is_named(self, tmp_path):
        self.write(tmp_path, [2, 3])
        (tmp_path / "shard.00001.mds").rename(tmp_path / "shard.00001.mds.zstd")
        with pytest.raises(SourceError, match=r"index\.json lists 'shard\.00001\.mds', which is not there"):
            index(tmp_path, format="mds")

    def test_a_shard_cut_short_is_named(self, tmp_path):
        self.write(tmp_path, [2])
        path = tmp_path / "shard.00000.mds"
        path.write_bytes(path.read_bytes()[:-1])
        with pytest.raises(CorruptRecordError, match=r"shard\.00000\.mds"):
            index(tmp_path, format="mds")

    def test_encodings_that_are_not_read_are_named(self, tmp_path):
        write_mds(tmp_path / "shard.00000.mds", {"x": ("pkl", None)}, [[b"\x80\x04N."]])
        with pytest.raises(SchemaError, match="the column 'x' is encoded as 'pkl', which dlio does not read"):
            index(tmp_path, format="mds")

    def test_arrays_that_tell_their_own_shape(self, tmp_path):
        array = np.arange(6, dtype="<u2").reshape(2, 3)
        static = bytes([2 << 2, 2, 3]) + array.tobytes()
        write_mds(
            tmp_path / "shard.00000.mds",
            {"a": ("ndarray:uint16", None), "b": ("ndarray", None), "c": ("str_int", None)},
            [[static, bytes([16]) + static, b"-7"]],
        )
        with pytest.raises(SchemaError, match=r"'a' is encoded as 'ndarray:uint16'.*--schema"):
            index(tmp_path, format="mds")
        schema = Schema.of({"a": "uint16[?,?]", "b": "uint16[2,3]", "c": "int64"})
        _, [(_, fields)] = adopt(tmp_path, "mds", schema=schema)
        np.testing.assert_array_equal(fields["a"], array)
        np.testing.assert_array_equal(fields["b"], array)
        assert fields["c"] == -7

    @settings(max_examples=60, deadline=None)
    @given(st.data())
    def test_damage_is_named_or_does_no_harm(self, tmp_path_factory, data):
        root = tmp_path_factory.mktemp("mds")
        self.write(root, [2])
        path = root / "shard.00000.mds"
        whole = bytearray(path.read_bytes())
        whole[data.draw(st.integers(0, len(whole) - 1))] ^= 1 << data.draw(st.integers(0, 7))
        path.write_bytes(whole[: data.draw(st.integers(0, len(whole)))] if data.draw(st.booleans()) else whole)
        schema = Schema.of({"image": "bytes", "label": "int64", "box": "int16[2,2]", "note": "str"})
        try:
            with closing(formats.load("mds").Reader(path, schema)) as reader:
                for number in range(len(reader)):
                    reader.read(number)
        except CorruptRecordError as error:
            assert "shard.00000.mds" in str(error)


class TestCommandLine:
    """The verb `index`."""

    def test_it_indexes_and_reports(self, tmp_path, capsys):
        write_records(tmp_path / "a.tfrecord", "tfrecord", photo_records(0, 3), PAIR)
        assert main(["index", str(tmp_path), "--format", "tfrecord", "--json"]) == 0
        report = json.loads(capsys.readouterr().out)
        assert (report["samples"], report["schema"], report["shards"]) == (3, PAIR, 1)
        assert main(["info", str(tmp_path)]) == 0

    def test_options(self, tmp_path):
        write_records(tmp_path / "a.tfrecord", "tfrecord", photo_records(0, 3), PAIR)
        command = ["index", str(tmp_path), "--format", "tfrecord", "--quiet"]
        assert main([*command, "--match", "b*"]) == 3
        assert main([*command, "--match", "a*", "--schema", '{"image": "bytes", "label": "int64"}']) == 0
        assert main(command) == 2
        assert main([*command, "--overwrite", "--workers", "2"]) == 0

    @pytest.mark.parametrize("schema", ["", "[]", "{}", '{"image": "picture"}', '{"a b": "bytes"}', "nan"])
    def test_a_schema_that_is_none(self, tmp_path, schema, capsys):
        with pytest.raises(SystemExit) as raised:
            main(["index", str(tmp_path), "--format", "tfrecord", "--schema", schema])
        assert raised.value.code == 2
        assert "is no schema" in capsys.readouterr().err

    def test_a_folder_that_cannot_be_written(self, tmp_path):
        write_records(tmp_path / "a.tfrecord", "tfrecord", photo_records(0, 3), PAIR)
        (tmp_path / f"a.tfrecord{SUFFIX}").mkdir()  # where the table would be written
        before = content(tmp_path)
        with pytest.raises(StorageError, match=r"cannot publish .*a\.tfrecord"):
            index(tmp_path, format="tfrecord", workers=1)
        assert content(tmp_path) == before
