"""Examples of other tools; those that TensorFlow itself writes are in test_tensorflow.py."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from dlio import formats
from dlio.dataset.schema import Schema
from dlio.errors import CorruptRecordError, SchemaError
from dlio.formats.payloads import example
from dlio.formats.payloads.messages import message
from dlio.pack.index import index
from tests.helpers.adopted import JPEGS, adopt, batch


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
            ([{}], "have no fields"),
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
