"""`dlio index` on TFRecords that TensorFlow has written."""

from __future__ import annotations

from pathlib import Path

import pytest

from dlio.cli import main
from dlio.dataset.manifest import Manifest
from dlio.errors import CorruptRecordError, SchemaError
from dlio.images import CenterCrop
from dlio.pack.index import index
from tests.helpers.images import image
from tests.helpers.packing import content, samples

SYNSETS = [b"n01440764", b"n01443537", b"n01484850"]


@pytest.fixture(autouse=True)
def leaves_nothing_behind():
    """TensorFlow keeps its own files and threads; ours are watched by the tests that go without it."""


def example(tf, **features) -> bytes:
    """Returns an Example; a feature's name has `/` for `__`."""
    lists = {}
    for name, value in features.items():
        kind = {bytes: "bytes_list", int: "int64_list", float: "float_list"}[type(value)]
        made = {"bytes_list": tf.train.BytesList, "int64_list": tf.train.Int64List, "float_list": tf.train.FloatList}
        lists[name.replace("__", "/")] = tf.train.Feature(**{kind: made[kind](value=[value])})
    return tf.train.Example(features=tf.train.Features(feature=lists)).SerializeToString()


def write(tf, path: Path, records: list[bytes], compression: str = "") -> None:
    with tf.io.TFRecordWriter(str(path), tf.io.TFRecordOptions(compression_type=compression)) as writer:
        for record in records:
            writer.write(record)


@pytest.fixture
def imagenet(tf, tmp_path) -> Path:
    """Six images as imagenet_to_gcs writes them: labels from 1, names without a suffix."""
    for shard in range(2):
        records = [
            example(
                tf,
                image__height=16,
                image__width=24,
                image__colorspace=b"RGB",
                image__channels=3,
                image__class__label=number + 1,
                image__class__synset=SYNSETS[number],
                image__format=b"JPEG",
                image__filename=SYNSETS[number] + b"_%d.JPEG" % shard,
                image__encoded=image(3 * shard + number, "JPEG"),
            )
            for number in range(3)
        ]
        write(tf, tmp_path / f"train-{shard:05d}-of-00002", records)
    return tmp_path


def test_imagenet_is_image_classification(imagenet):
    before = content(imagenet)
    assert main(["index", str(imagenet), "--format", "tfrecord", "--label-offset", "1", "--workers", "2"]) == 0
    assert before.items() <= content(imagenet).items()
    assert main(["verify", str(imagenet), "--decode"]) == 0
    manifest = Manifest.load(imagenet)
    assert manifest.schema.is_image_classification
    assert manifest.schema.label_offset == 1
    assert manifest.class_names == tuple(name.decode() for name in SYNSETS)
    assert samples(imagenet) == [
        (f"{SYNSETS[n].decode()}_{shard}.JPEG", {"image": image(3 * shard + n, "JPEG"), "label": n + 1})
        for shard in range(2)
        for n in range(3)
    ]


@pytest.mark.parametrize("names", [("image/encoded", "image/class/label"), ("image", "label"), ("label", "image")])
def test_it_trains_in_tensorflow(tf, tmp_path, names):
    from dlio.loaders.tensorflow import dataset

    features = {"image": lambda n: image(n, "JPEG"), "label": lambda n: n}
    kinds = [name.split("/")[-1].replace("encoded", "image") for name in names]
    records = [
        example(tf, **{name.replace("/", "__"): features[kind](n) for name, kind in zip(names, kinds, strict=True)})
        for n in range(6)
    ]
    write(tf, tmp_path / "a.tfrecord", records)
    index(tmp_path, format="tfrecord", workers=1)
    [(images, labels)] = dataset(tmp_path, batch_size=6, transform=CenterCrop(8), shuffle=False)
    assert images.shape == (6, 8, 8, 3)
    assert labels.numpy().tolist() == list(range(6))


def test_sequences_are_refused_by_name(tf, tmp_path):
    frame = tf.train.Feature(bytes_list=tf.train.BytesList(value=[b"x"]))
    lists = tf.train.FeatureLists(feature_list={"image/encoded": tf.train.FeatureList(feature=[frame])})
    context = tf.train.Features(
        feature={"clip/label/index": tf.train.Feature(int64_list=tf.train.Int64List(value=[1]))}
    )
    record = tf.train.SequenceExample(context=context, feature_lists=lists)
    write(tf, tmp_path / "a", [record.SerializeToString()])
    with pytest.raises(SchemaError, match=r"a, record 0 is not a tf\.train\.Example, but a SequenceExample"):
        index(tmp_path, format="tfrecord")


@pytest.mark.parametrize("compression", ["GZIP", "ZLIB"])
def test_compressed_files_are_named(tf, tmp_path, compression):
    write(tf, tmp_path / "a.tfrecord", [example(tf, label=3)] * 20, compression)
    with pytest.raises(CorruptRecordError, match=r"a\.tfrecord: .*compressed"):
        index(tmp_path, format="tfrecord")
