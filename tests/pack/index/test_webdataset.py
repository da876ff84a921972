"""Tars of the package webdataset."""

from __future__ import annotations

import json
from contextlib import closing

import numpy as np
import pytest

from dlio import formats
from dlio.dataset.schema import Schema
from dlio.errors import CorruptRecordError
from dlio.pack.index import index
from tests.helpers.adopted import JPEGS, PAIR, adopt, batch
from tests.helpers.images import image
from tests.helpers.lazy import Lazy
from tests.helpers.packing import samples

wds = Lazy("webdataset")
pytestmark = pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")  # webdataset leaves its tars open


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

    def test_an_index_without_names_is_left_alone(self, tmp_path):
        with wds.TarWriter(str(tmp_path / "a.tar")) as writer:
            for n in range(3):
                writer.write({"__key__": str(n), "jpg": JPEGS[n], "cls": n})
        (tmp_path / "a.idx").write_text("v1.1 3\njpg 512 1\njpg 512 1\njpg 512 1\n")
        manifest, found = adopt(tmp_path, "webdataset")
        assert [file.name for file in manifest.shards[0].files][:2] == ["a.tar", ".dlio-index/a.tar.idx"]
        assert [fields["label"] for _, fields in found] == [0, 1, 2]
        (tmp_path / ".dlio-index/a.tar.idx").write_text("v1.2 0\n")
        with closing(formats.load("webdataset").Reader(tmp_path / "a.tar", manifest.schema)) as reader:
            assert len(reader) == 0  # so it is what readers take

    @pytest.mark.parametrize("has_index", [True, False])
    def test_names_of_any_length_and_kind(self, tmp_path, has_index):
        folder = "a folder " * 20 if not has_index else "a-folder-" * 20
        with wds.TarWriter(str(tmp_path / "a.tar")) as writer:
            for n in range(3):
                writer.write({"__key__": f"{folder}/é{n}", "jpg": JPEGS[n], "cls": n})
        index(tmp_path, format="webdataset", workers=1)
        assert (tmp_path / ".dlio-index/a.tar.idx").exists() == has_index
        assert samples(tmp_path) == [(f"{folder}/é{n}", {"image": JPEGS[n], "label": n}) for n in range(3)]

    def test_two_images_a_sample_keep_their_extensions(self, tmp_path):
        with wds.TarWriter(str(tmp_path / "a.tar")) as writer:
            writer.write({"__key__": "k", "jpg": JPEGS[0], "png": image(1)})
        _, found = adopt(tmp_path, "webdataset")
        assert found == [("k", {"jpg": JPEGS[0], "png": image(1)})]

    @pytest.mark.parametrize(
        ("old", "new"),
        [
            (b"<f8", b"<f7"),
            (b"<f8", b"<q8"),
            (b"<f8", b"|O8"),
            (b"\x93NUMPY", b"\x93NUMPX"),
            (b"\x93NUMPY\1", b"\x93NUMPY\3"),
            (b"(4,)", b"(5,)"),
            (b"(4,)", b"(-4)"),
            (b"'shape'", b"'shapE'"),
        ],
    )
    def test_an_array_with_a_damaged_header_is_named(self, tmp_path, old, new):
        with wds.TarWriter(str(tmp_path / "a.tar")) as writer:
            writer.write({"__key__": "0", "jpg": JPEGS[0], "npy": np.zeros(4)})
        tar = (tmp_path / "a.tar").read_bytes()
        assert tar.count(old) == 1
        (tmp_path / "a.tar").write_bytes(tar.replace(old, new))
        with pytest.raises(CorruptRecordError, match=r"a\.tar, record 0, offset \d+: .*\.npy"):
            index(tmp_path, format="webdataset")

    @pytest.mark.parametrize(
        "words",
        ["jpg 511 9 0.jpg", "jpg 512 -1 0.jpg", "jpg 512 999999 0.jpg", "jpg 1024 9 0.jpg", "jpg x 9 0.jpg", "jpg 512"]
        + [f"jpg {number} 9 0.jpg" for number in ("9" * 19, "9" * 5000, "1e3", "0")],
    )
    def test_an_index_that_does_not_fit_is_named(self, tmp_path, words):
        with wds.TarWriter(str(tmp_path / "a.tar")) as writer:
            writer.write({"__key__": "0", "jpg": JPEGS[0], "cls": 1})
        (tmp_path / "a.idx").write_text(f"v1.2 1\n{words}\n")
        with pytest.raises(CorruptRecordError, match=r"a\.(idx|tar)"):
            index(tmp_path, format="webdataset")
