"""Caffe's databases."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import lmdb
import pytest

from dlio.dataset.schema import Sample, Schema
from dlio.errors import SchemaError, UsageError
from dlio.formats import lmdb as lmdb_format
from dlio.pack.index import index
from tests.helpers.adopted import JPEGS, adopt, batch


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
        with pytest.raises(
            SchemaError, match=r"data\.mdb, record 0 is neither a Datum with an image nor an Example: .*dlio pack"
        ):
            index(tmp_path, format="lmdb")

    def test_a_single_file_of_ours(self, tmp_path):
        schema = Schema.of({"words": "str[]", "label": "int64"})
        with closing(lmdb_format.RecordWriter(tmp_path / "a.lmdb", schema)) as writer:
            writer.write(Sample("k", {"words": ["x", "y"], "label": 3}))
        _, found = adopt(tmp_path, "lmdb")
        assert found == [("k", {"words": [b"x", b"y"], "label": 3})]
