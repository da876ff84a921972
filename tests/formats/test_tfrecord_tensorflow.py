"""TensorFlow reads our TFRecords, and we read TensorFlow's."""

from __future__ import annotations

import numpy as np
import pytest

from dlio.dataset.schema import IMAGE_CLASSIFICATION, ImageInfo, Sample, Schema
from dlio.formats import tfrecord
from dlio.testing.container import read_all, write_all


@pytest.fixture(autouse=True)
def leaves_nothing_behind():
    """TensorFlow keeps its own files and threads; ours are watched by the tests that go without it."""


def _write(folder, schema, samples):
    write_all(tfrecord.Writer(folder / "shard", schema), samples)
    return folder / "shard.tfrecord"


def _read(path, schema):
    return read_all(tfrecord.Reader(path, schema))


def test_tensorflow_reads_imagenet_fields(tf, tmp_path):
    schema = Schema.of({"image": "bytes", "label": "int64"}, class_names=("n0", "n1"), label_offset=1)
    info = ImageInfo("JPEG", 5, 7, 3)
    samples = [Sample(f"n{n % 2}/é{n}.jpg", {"image": bytes([n]) * 300, "label": n % 2 + 1}, info) for n in range(5)]
    path = _write(tmp_path, schema, samples)
    features = {
        "image/encoded": tf.io.FixedLenFeature([], tf.string),
        "image/format": tf.io.FixedLenFeature([], tf.string),
        "image/colorspace": tf.io.FixedLenFeature([], tf.string),
        "image/filename": tf.io.FixedLenFeature([], tf.string),
        "image/class/synset": tf.io.FixedLenFeature([], tf.string),
        "image/class/label": tf.io.FixedLenFeature([], tf.int64),
        "image/height": tf.io.FixedLenFeature([], tf.int64),
        "image/width": tf.io.FixedLenFeature([], tf.int64),
        "image/channels": tf.io.FixedLenFeature([], tf.int64),
    }
    records = tf.data.TFRecordDataset(str(path))
    found = [tf.io.parse_single_example(record, features) for record in records]
    assert [int(example["image/class/label"]) for example in found] == [1, 2, 1, 2, 1]
    assert [example["image/encoded"].numpy() for example in found] == [sample.fields["image"] for sample in samples]
    third = {name: value.numpy() for name, value in found[3].items()}
    del third["image/encoded"]
    assert third == {
        "image/format": b"JPEG",
        "image/colorspace": b"RGB",
        "image/filename": "é3.jpg".encode(),
        "image/class/synset": b"n1",
        "image/class/label": 2,
        "image/height": 5,
        "image/width": 7,
        "image/channels": 3,
    }


def test_tensorflow_reads_other_fields(tf, tmp_path):
    schema = Schema.of({"image": "bytes", "label": "float32[14]", "box": "int32[2,2]", "words": "str[]"})
    label = np.arange(14, dtype="float32")
    box = np.array([[1, -2], [3, 4]], dtype="int32")
    path = _write(tmp_path, schema, [Sample("k", {"image": b"i", "label": label, "box": box, "words": ["a", "b"]})])
    features = {
        "label": tf.io.FixedLenFeature([14], tf.float32),
        "box": tf.io.FixedLenFeature([2, 2], tf.int64),
        "words": tf.io.VarLenFeature(tf.string),
    }
    found = tf.io.parse_single_example(next(iter(tf.data.TFRecordDataset(str(path)))), features)
    np.testing.assert_array_equal(found["label"], label)
    np.testing.assert_array_equal(found["box"], box)
    assert tf.sparse.to_dense(found["words"]).numpy().tolist() == [b"a", b"b"]


def _example(tf, **features):
    return tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()


def test_we_read_tensorflows_imagenet_files(tf, tmp_path):
    path = tmp_path / "train-00000-of-01024"
    images = [b"", b"one", bytes(range(256)) * 40]
    with tf.io.TFRecordWriter(str(path)) as writer:
        for number, image in enumerate(images):
            fields = {
                "image/encoded": tf.train.Feature(bytes_list=tf.train.BytesList(value=[image])),
                "image/class/label": tf.train.Feature(int64_list=tf.train.Int64List(value=[number - 1])),
                "image/filename": tf.train.Feature(bytes_list=tf.train.BytesList(value=[b"%d.jpg" % number])),
                "image/object/bbox/xmin": tf.train.Feature(float_list=tf.train.FloatList(value=[0.5])),
            }
            writer.write(_example(tf, **fields))
    found = _read(path, IMAGE_CLASSIFICATION)
    assert [sample.fields for sample in found] == [
        {"image": image, "label": number - 1} for number, image in enumerate(images)
    ]
    assert [sample.key for sample in found] == ["0.jpg", "1.jpg", "2.jpg"]

    lines, offset = [], 0
    for record in tf.data.TFRecordDataset(str(path)):
        num_bytes = len(record.numpy()) + 16
        lines.append(f"{offset} {num_bytes}\n")
        offset += num_bytes
    path.with_suffix(".idx").write_text("".join(lines))
    assert _read(path, IMAGE_CLASSIFICATION) == found


def test_we_read_tensorflows_number_lists(tf, tmp_path):
    path = tmp_path / "other.tfrecord"
    with tf.io.TFRecordWriter(str(path)) as writer:
        numbers = tf.train.Feature(int64_list=tf.train.Int64List(value=[-1, 2**62]))
        floats = tf.train.Feature(float_list=tf.train.FloatList(value=[0.5, 1e30, 3.0]))
        writer.write(_example(tf, numbers=numbers, floats=floats))
    found = _read(path, Schema.of({"numbers": "int64[2]", "floats": "float32[]"}))[0].fields
    assert found["numbers"].tolist() == [-1, 2**62]
    np.testing.assert_array_equal(found["floats"], np.array([0.5, 1e30, 3.0], dtype="float32"))


def test_equal_meaning_as_tensorflows_own_serialisation(tf, tmp_path):
    path = _write(tmp_path, IMAGE_CLASSIFICATION, [Sample("a/b.png", {"image": b"data", "label": -3})])
    found = tf.train.Example.FromString(next(iter(tf.data.TFRecordDataset(str(path)))).numpy())
    again = tf.train.Example.FromString(found.SerializeToString(deterministic=True))
    assert found == again
    assert sorted(found.features.feature) == [
        "__key__",
        "image/class/label",
        "image/class/synset",
        "image/encoded",
        "image/filename",
    ]
