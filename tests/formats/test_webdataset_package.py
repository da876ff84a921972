"""The package webdataset reads our tars, and we read its."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from dlio.dataset.schema import Sample, Schema
from tests.formats.webdataset_tars import read, write
from tests.helpers.images import encoded
from tests.helpers.lazy import Lazy

wds = Lazy("webdataset")
pytestmark = pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")  # webdataset leaves its tars open


def _image(number, kind="JPEG"):
    return encoded(Image.new("RGB", (5, 4), (number, 20, 30)), kind)


def _open(path):
    return wds.WebDataset(str(path), shardshuffle=False)


def test_it_decodes_our_images_and_labels(tmp_path):
    keys = ["a/1.jpg", "a/2.v1.jpg", "b/ü 3.jpg", "x" * 300 + ".jpg", "__m__/4.jpg"]
    samples = [Sample(key, {"image": _image(n), "label": n}) for n, key in enumerate(keys)]
    path = write(tmp_path, samples)
    raw = list(_open(path))
    assert [sample["jpg"] for sample in raw] == [_image(n) for n in range(len(keys))]
    decoded = list(_open(path).decode("pil").to_tuple("jpg", "cls"))
    assert [label for _, label in decoded] == list(range(len(keys)))
    assert {image.size for image, _ in decoded} == {(5, 4)}
    assert [sample["__key__"] for sample in raw] == [sample.key for sample in read(path)]


def test_it_decodes_our_other_fields(tmp_path):
    types = {"image": "bytes", "mask": "bytes", "label": "float32[3]", "text": "str", "frames": "bytes[]"}
    schema = Schema.of({**types, "weight": "float64"})
    label = np.array([0.5, 1, 2], dtype="float32")
    frames = [_image(1), _image(2, "PNG")]
    fields = {"image": _image(0, "PNG"), "mask": _image(3, "PNG"), "label": label, "text": "é漢", "frames": frames}
    path = write(tmp_path, [Sample("k", {**fields, "weight": 0.1})], schema)
    (found,) = _open(path).decode("rgb8")
    assert found["png"].shape == found["mask.png"].shape == found["frames.000001.png"].shape == (4, 5, 3)
    assert found["label.npy"].dtype == "float32"
    np.testing.assert_array_equal(found["label.npy"], label)
    assert found["weight.npy"] == 0.1
    assert found["text.txt"] == "é漢"


@pytest.mark.parametrize("kind", ["jpg", "png", "jpeg"])
def test_we_read_what_its_shard_writer_wrote(kind, tmp_path):
    image = _image(9, "PNG" if kind == "png" else "JPEG")
    with wds.ShardWriter(str(tmp_path / "shard-%06d.tar"), maxcount=2, verbose=0) as writer:
        for number in range(3):
            writer.write({"__key__": f"a/sample{number:06d}", kind: image, "cls": number, "json": {"n": number}})
    first, second = (read(tmp_path / f"shard-00000{number}.tar") for number in (0, 1))
    assert [sample.key for sample in first + second] == ["a/sample000000", "a/sample000001", "a/sample000002"]
    assert [sample.fields for sample in first + second] == [{"image": image, "label": n} for n in range(3)]


def test_we_read_what_its_tar_writer_wrote(tmp_path):
    array = np.arange(6, dtype="int16").reshape(2, 3)
    with wds.TarWriter(str(tmp_path / "other.tar")) as writer:
        writer.write({"__key__": "k", "txt": "é", "npy": array, "id": 4, "left.npy": array[0]})
    schema = Schema.of({"txt": "str", "npy": "int16[2,3]", "id": "int32", "left": "int16[]"})
    (found,) = read(tmp_path / "other.tar", schema)
    assert (found.fields["txt"], found.fields["id"]) == ("é", 4)
    np.testing.assert_array_equal(found.fields["npy"], array)
    np.testing.assert_array_equal(found.fields["left"], array[0])
