"""tf.data from packed shards: every format, every rank, known lengths, Pillow's pixels.

One file, since the import is slow.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import dlio
from dlio.dataset.manifest import Manifest
from dlio.dataset.schema import Sample, Schema
from dlio.errors import SchemaError, UsageError
from dlio.images import CenterCrop, RandomResizedCrop, Resize
from dlio.loaders._prefetch.batch_sources import ArrayBatches
from dlio.loaders._tensorflow import records
from dlio.loaders.dataset import PackedSamples
from dlio.loaders.loader import Loader
from dlio.loaders.sampling.order import Shuffle, Window
from dlio.loaders.sampling.rank_share import End
from dlio.loaders.tensorflow import dataset
from tests.helpers.images import image, make_image_folder
from tests.loaders.packing import pack_samples
from tests.loaders.photos import NUM_PHOTOS, numbers

PLACE = {"rank": 0, "world_size": 1}


@pytest.fixture(autouse=True)
def leaves_nothing_behind() -> Iterator[None]:
    """TensorFlow keeps its own threads, and iterators that it collects when it likes."""
    yield


@pytest.fixture(scope="module", params=["tfrecord", "recordio"])
def packed_here(photos: Path, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Manifest:
    """The photos in 7 shards, read by TensorFlow's operations or by dlio's loader."""
    out = tmp_path_factory.mktemp(request.param)
    return dlio.pack(dlio.sources.image_folder(photos), out, format=request.param, num_shards=7, engine="serial")


@pytest.mark.parametrize("end", End)
@pytest.mark.parametrize("shuffle", [False, True, Window(2)], ids=str)
def test_ranks_see_every_sample_once_in_equal_steps(packed_here: Manifest, end: End, shuffle: Shuffle) -> None:
    seen: list[int] = []
    steps = set()
    for rank in range(3):
        batches = dataset(packed_here, 4, transform=Resize(16), shuffle=shuffle, end=end, rank=rank, world_size=3)
        elements = list(batches)
        steps.add((len(batches), *(len(element[1]) for element in elements)))
        assert len(elements) == len(batches)
        valid = np.concatenate([e[2].numpy() == 1 if end is End.MASK else np.ones(len(e[1]), bool) for e in elements])
        seen += [n for n, ok in zip(numbers(elements), valid, strict=True) if ok]
    assert len(steps) == 1
    if end is End.MASK:
        assert sorted(seen) == list(range(NUM_PHOTOS))
    elif end is End.PAD:
        assert set(seen) == set(range(NUM_PHOTOS))
    else:
        assert len(set(seen)) == len(seen) == 36


@pytest.mark.parametrize("end", End)
def test_more_ranks_than_shards_share_their_records(packed: Manifest, end: End) -> None:
    seen: list[int] = []
    for rank in range(10):
        batches = dataset(packed, 2, transform=Resize(16), shuffle=True, end=end, rank=rank, world_size=10)
        assert len(list(batches)) == len(batches) == (2 if end is End.DROP else 3)
        for element in batches:
            valid = element[2].numpy() == 1 if end is End.MASK else np.ones(len(element[1]), bool)
            seen += element[0].numpy()[valid][:, 0, 0, 0].tolist()
    assert set(seen) <= set(range(NUM_PHOTOS))
    if end is End.MASK:
        assert sorted(seen) == list(range(NUM_PHOTOS))


def test_elements_are_fully_specified(packed_here: Manifest) -> None:
    batches = dataset(packed_here, 4, transform=Resize((16, 12)), drop_remainder=True, **PLACE)
    assert batches.element_spec == (tf.TensorSpec((4, 16, 12, 3), tf.uint8), tf.TensorSpec((4,), tf.int64))
    assert int(batches.cardinality()) == 10
    policy = batches.options().experimental_distribute.auto_shard_policy
    assert policy == tf.data.experimental.AutoShardPolicy.OFF
    padded = dataset(packed_here, 4, transform=Resize((16, 12)), end="mask", **PLACE)
    assert padded.element_spec[0] == tf.TensorSpec((None, 16, 12, 3), tf.uint8)
    assert padded.element_spec[2] == tf.TensorSpec((None,), tf.float32)
    assert [len(labels) for _, labels, _ in padded] == [4] * 10 + [1]


def test_each_pass_is_the_next_epoch_and_reproducible(packed_here: Manifest) -> None:
    batches = dataset(packed_here, 8, transform=Resize(16), shuffle=True, seed=3, **PLACE)
    epochs = [numbers(batches) for _ in range(3)]
    assert all(sorted(epoch) == list(range(NUM_PHOTOS)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3
    again = dataset(packed_here, 8, transform=Resize(16), shuffle=True, seed=3, **PLACE)
    assert [numbers(again) for _ in range(3)] == epochs
    resumed = dataset(packed_here, 8, transform=Resize(16), shuffle=True, seed=3, epoch=1, **PLACE)
    assert [numbers(resumed) for _ in range(2)] == epochs[1:]
    assert numbers(dataset(packed_here, 8, transform=Resize(16), shuffle=True, seed=4, **PLACE)) != epochs[0]


def test_tensorflows_seed_changes_no_order(packed_here: Manifest) -> None:
    """Ranks that set different seeds must still share one order."""
    orders = []
    try:
        for seed in (None, 0, 5):
            tf.random.set_seed(seed)
            orders.append(numbers(dataset(packed_here, 8, transform=Resize(16), shuffle=True, seed=3, **PLACE)))
        assert tf.random.uniform(()) == (tf.random.set_seed(5), tf.random.uniform(()))[1], "the seed is the caller's"
    finally:
        tf.random.set_seed(None)
    assert orders[0] == orders[1] == orders[2]


def test_without_a_transform_images_stay_encoded(packed_here: Manifest, photos: Path) -> None:
    images, labels = next(iter(dataset(packed_here, NUM_PHOTOS, **PLACE)))
    assert images.numpy().tolist() == [path.read_bytes() for path in sorted(photos.glob("*/*.png"))]
    assert labels.numpy().tolist() == PackedSamples(packed_here).labels.tolist()


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "BMP"])
@pytest.mark.parametrize("transform", [RandomResizedCrop(16, flip=True), CenterCrop(16), Resize((16, 20))], ids=repr)
def test_tensorflow_decodes_what_the_loader_decodes(tmp_path: Path, kind: str, transform: Any) -> None:
    """The same boxes and flips, and pixels within 3 of 255."""
    make_image_folder(tmp_path / "photos", {"a": 5, "b": 4}, kind)
    manifest = dlio.pack(dlio.sources.image_folder(tmp_path / "photos"), tmp_path / "packed", engine="serial")
    assert records.reads(PackedSamples(manifest, transform))
    source = ArrayBatches(PackedSamples(manifest, transform), channels_last=True)
    expected = next(iter(Loader(source, 9, seed=2, place=lambda: (0, 1))))
    images, labels = next(iter(dataset(manifest, 9, transform=transform, seed=2, **PLACE)))
    assert labels.numpy().tolist() == expected["label"].tolist()
    distance = np.abs(images.numpy().astype(int) - expected["image"])
    assert distance.max() <= 3 and distance.mean() <= 1


@pytest.mark.parametrize("name", ["tfrecord", "lmdb"])
def test_label_offset_is_taken_off(tmp_path: Path, name: str) -> None:
    schema = Schema.of({"image": "bytes", "label": "int64"}, ("ant", "bee"), label_offset=1)
    samples = [Sample(str(i), {"image": image(i), "label": 1 + i % 2}) for i in range(4)]
    manifest = pack_samples(tmp_path, schema, samples, num_shards=1, name=name)
    assert next(iter(dataset(manifest, 4, **PLACE)))[1].numpy().tolist() == [0, 1, 0, 1]


@pytest.mark.parametrize("label", ["float32[14]", "int32", "float64[2]", "uint8[3]", "bool", "float16"])
def test_labels_of_any_type(tmp_path: Path, label: str) -> None:
    schema = Schema.of({"image": "bytes", "label": label})
    kind = schema["label"]
    rows = [np.full([dim or 0 for dim in kind.shape], i % 2, kind.dtype) for i in range(6)]
    samples = [Sample(str(i), {"image": image(i), "label": row}) for i, row in enumerate(rows)]
    manifest = pack_samples(tmp_path, schema, samples, num_shards=2)
    _, labels = next(iter(dataset(manifest, 6, transform=Resize(8), **PLACE)))
    assert labels.dtype == kind.dtype and labels.numpy().tolist() == np.stack(rows).tolist()


def test_other_schemas_give_dicts_and_ragged_lists(tmp_path: Path) -> None:
    schema = Schema.of(
        {"frames": "bytes[]", "name": "str", "pose": "float32[3]", "points": "int16[]", "pair": "bytes[2]"}
    )
    rows = [
        {
            "frames": [b"f"] * i,
            "name": f"n{i}",
            "pose": np.full(3, i, "float32"),
            "points": np.arange(i, dtype="int16"),
            "pair": [b"x", b"y"],
        }
        for i in range(5)
    ]
    manifest = pack_samples(tmp_path, schema, [Sample(row["name"], row) for row in rows], num_shards=2)
    element = next(iter(dataset(manifest, 5, **PLACE)))
    assert element["frames"].to_list() == [[b"f"] * i for i in range(5)]
    assert element["points"].to_list() == [list(range(i)) for i in range(5)]
    assert element["name"].numpy().tolist() == [b"n0", b"n1", b"n2", b"n3", b"n4"]
    assert element["pair"].shape == (5, 2) and element["pose"].dtype == tf.float32


def test_what_makes_no_batch_is_refused(tmp_path: Path, packed: Manifest) -> None:
    schema = Schema.of({"points": "float32[?,3]"})
    samples = [Sample("a", {"points": np.zeros((2, 3), "float32")})]
    with pytest.raises(SchemaError, match="'points'"):
        dataset(pack_samples(tmp_path, schema, samples, num_shards=1), 1, **PLACE)
    with pytest.raises(UsageError, match="no whole batch"):
        dataset(packed, 30, drop_remainder=True, rank=0, world_size=2)
    with pytest.raises(UsageError, match="shuffle='yes': expected"):
        dataset(packed, 5, shuffle="yes", **PLACE)
    with pytest.raises(UsageError, match="both or neither"):
        dataset(packed, 4, rank=0)


def test_an_image_that_cannot_be_decoded_is_named(tmp_path: Path) -> None:
    schema = Schema.of({"image": "bytes", "label": "int64"})
    samples = [Sample(f"some/{i}.png", {"image": b"no image", "label": 0}) for i in range(3)]
    for name in ("tfrecord", "webdataset"):
        manifest = pack_samples(tmp_path / name, schema, samples, num_shards=1, name=name)
        with pytest.raises(tf.errors.OpError, match=r"sample 'some/0\.png': the image cannot be decoded"):
            list(dataset(manifest, 2, transform=Resize(8), **PLACE))


def test_a_jpeg_whose_body_tensorflow_cannot_decode_is_named(tmp_path: Path) -> None:
    """Its record is sound, its header too; in its middle begins a table that is none."""
    pixels = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    jpeg = tf.io.encode_jpeg(pixels).numpy()
    middle = len(jpeg) // 2
    broken = jpeg[:middle] + b"\xff\xc4" + jpeg[middle + 2 :]
    schema = Schema.of({"image": "bytes", "label": "int64"})
    samples = [Sample(f"s{i}", {"image": broken if i == 5 else jpeg, "label": i}) for i in range(8)]
    manifest = pack_samples(tmp_path, schema, samples, num_shards=2)
    batches = iter(dataset(manifest, 4, transform=Resize(8), **PLACE))
    assert next(batches)[1].numpy().tolist() == [0, 1, 2, 3]
    with pytest.raises(tf.errors.OpError, match=r"shard-00001.tfrecord, record 1, offset \d+: sample 's5': TensorFlow"):
        next(batches)


def flip_a_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (flip_a_bit, r"shard-0*2\.tfrecord, record \d+, offset \d+: "),
        (Path.unlink, r"cannot open .*shard-0*2\.tfrecord"),
        (lambda path: os.truncate(path, 9), r"shard-0*2\.tfrecord.*found 9"),
    ],
    ids=["bit", "missing", "short"],
)
def test_what_tensorflow_cannot_read_is_named(
    packed: Manifest, tmp_path: Path, damage: Callable[[Path], object], problem: str, shuffle: bool
) -> None:
    folder = Path(shutil.copytree(packed.root, tmp_path / "copy"))
    damage(folder / packed.shards[2].files[0].name)
    with pytest.raises(tf.errors.OpError, match=problem):
        list(dataset(folder, 4, transform=Resize(8), shuffle=shuffle, **PLACE))


def test_a_shard_that_vanishes_between_epochs_is_named(packed: Manifest, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(packed.root, tmp_path / "copy"))
    batches = dataset(folder, 4, transform=Resize(8), **PLACE)
    assert sum(1 for _ in batches) == len(batches)
    (folder / packed.shards[2].files[0].name).unlink()
    with pytest.raises(tf.errors.OpError, match=r"cannot open .*shard-0*2\.tfrecord"):
        list(batches)


@pytest.mark.parametrize("name", ["tfrecord", "recordio"])
def test_damaged_samples_are_replaced_up_to_a_number(tmp_path: Path, name: str) -> None:
    schema = Schema.of({"image": "bytes", "label": "int64"})
    samples = [Sample(str(i), {"image": b"no image" if i in (1, 5) else image(i), "label": i}) for i in range(8)]
    manifest = pack_samples(tmp_path, schema, samples, num_shards=2, name=name)
    batches = dataset(manifest, 4, transform=Resize(8), max_skipped=2, end="mask", **PLACE)
    rows = [row for _, *columns in batches for row in zip(*(c.numpy().tolist() for c in columns), strict=True)]
    assert len(rows) == 8 and {label for label, _ in rows} == {0, 2, 3, 4, 6, 7}
    assert [weight for _, weight in rows] == [1, 0, 1, 1, 1, 0, 1, 1]
    with pytest.raises(tf.errors.OpError, match=r"sample '[15]': the image cannot be decoded"):
        list(dataset(manifest, 4, transform=Resize(8), max_skipped=1, **PLACE))


def test_keras_fits(packed_here: Manifest) -> None:
    keras = tf.keras
    model = keras.Sequential([keras.Input((16, 16, 3)), keras.layers.Flatten(), keras.layers.Dense(3)])
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    history = model.fit(
        dataset(packed_here, 8, transform=Resize(16), shuffle=True, **PLACE), epochs=2, verbose=0, shuffle=False
    )
    assert len(history.history["loss"]) == 2
