"""RecordIO as im2rec writes it."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

from dlio.errors import SchemaError, SourceError, UsageError
from dlio.pack.index import index
from tests.helpers.adopted import JPEGS, adopt


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
        ("text", "problem"),
        [
            ("0\t1\ta.jpg\n", "no line for the record of id 1"),
            ("a.jpg 3\n", "train.lst, line 1"),
            ("²\t1\ta.jpg\n", "train.lst, line 1"),
            ("9" * 5000 + "\t1\ta.jpg\n", "train.lst, line 1"),
        ],
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
