"""`dataset`: its specification, its ranks, its state, damaged samples, and threads that end."""

from __future__ import annotations

import gc
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from PIL import Image

from dlio.dataset.manifest import Manifest
from dlio.dataset.schema import Sample, Schema
from dlio.errors import SchemaError, UsageError
from dlio.images import RandomResizedCrop, Resize
from dlio.loaders.dataset import PackedSamples
from dlio.loaders.loader import ArrayBatches, Loader
from dlio.loaders.sampling.order import Shuffle, Window
from dlio.loaders.sampling.rank_share import End
from tests.helpers.images import encoded, image
from tests.helpers.lazy import Lazy
from tests.loaders.packing import pack_samples
from tests.loaders.photos import NUM_PHOTOS, dlio_threads, numbers

torch_loaders = Lazy("dlio.loaders.torch")
if TYPE_CHECKING:
    import tensorflow as tf

    from dlio.loaders.tensorflow import dataset
else:
    tf = Lazy("tensorflow")
    dataset = Lazy("dlio.loaders.tensorflow", "dataset")


@pytest.fixture
def detection(tmp_path: Path) -> Path:
    """Images with a mask and any number of boxes."""
    types = {"image": "bytes", "boxes": "float32[?,4]", "labels": "int64[]", "mask": "bytes"}
    samples = []
    for number in range(6):
        boxes = np.arange(4 * (number % 3), dtype="float32").reshape(-1, 4) * [1, 1, 3, 3]
        fields = {"boxes": boxes.astype("float32"), "labels": np.arange(number % 3)}
        mask = encoded(Image.fromarray(np.arange(1200, dtype="uint8").reshape(30, 40), "L"), "PNG")
        fields |= {"image": image(number, width=40, height=30), "mask": mask}
        samples.append(Sample(str(number), fields))
    pack_samples(tmp_path / "detection", Schema.of(types), samples, num_shards=2)
    return tmp_path / "detection"


def test_boxes_and_masks_move_as_in_every_loader(detection: Path) -> None:
    transform = RandomResizedCrop(16, flip=True)
    source = ArrayBatches(PackedSamples(detection, transform), channels_last=True)
    options: dict[str, Any] = {"shuffle": True, "seed": 5}
    wanted = list(Loader(source, 3, num_workers=0, **options))
    found = list(dataset(detection, 3, transform=transform, drop_remainder=True, **options, **PLACE))
    theirs = torch_loaders.PackedDataset(detection, transform)
    torches = list(torch_loaders.DataLoader(theirs, 3, drop_last=True, **options, **PLACE))
    assert sum(len(boxes) for batch in wanted for boxes in batch["boxes"])
    for batch, tensors, torchs in zip(wanted, found, torches, strict=True):
        assert batch["mask"].shape == (3, 16, 16) and batch["mask"].dtype == "int32"
        for name in ("image", "mask"):
            assert np.array_equal(tensors[name].numpy(), batch[name])
        assert np.array_equal(torchs["mask"].numpy(), batch["mask"])
        for name in ("boxes", "labels"):
            rows = zip(tensors[name], torchs[name], batch[name], strict=True)
            assert all(np.array_equal(a.numpy(), c) and np.array_equal(b.numpy(), c) for a, b, c in rows)


PLACE = {"rank": 0, "world_size": 1}


@pytest.fixture(autouse=True)
def leaves_nothing_behind() -> Iterator[None]:
    """TensorFlow's threads call Python, so only those of dlio are looked for."""
    yield
    assert not dlio_threads()


@pytest.mark.parametrize("end", End)
@pytest.mark.parametrize("shuffle", [False, True, Window(2)], ids=str)
def test_ranks_see_every_sample_once_in_equal_steps(packed: Manifest, end: End, shuffle: Shuffle) -> None:
    seen: list[int] = []
    steps = set()
    for rank in range(3):
        batches = dataset(packed, 4, transform=Resize(16), shuffle=shuffle, end=end, rank=rank, world_size=3)
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


def test_elements_are_fully_specified(packed: Manifest) -> None:
    batches = dataset(packed, 4, transform=Resize((16, 12)), drop_remainder=True, **PLACE)
    assert batches.element_spec == (tf.TensorSpec((4, 16, 12, 3), tf.uint8), tf.TensorSpec((4,), tf.int64))
    assert int(batches.cardinality()) == 10
    policy = batches.options().experimental_distribute.auto_shard_policy
    assert policy == tf.data.experimental.AutoShardPolicy.OFF
    padded = dataset(packed, 4, transform=Resize((16, 12)), end="mask", **PLACE)
    assert padded.element_spec[0] == tf.TensorSpec((None, 16, 12, 3), tf.uint8)
    assert padded.element_spec[2] == tf.TensorSpec((None,), tf.float32)
    assert [len(labels) for _, labels, _ in padded] == [4] * 10 + [1]


def test_each_pass_is_the_next_epoch_and_reproducible(packed: Manifest) -> None:
    batches = dataset(packed, 8, transform=Resize(16), shuffle=True, seed=3, **PLACE)
    epochs = [numbers(batches) for _ in range(3)]
    assert all(sorted(epoch) == list(range(NUM_PHOTOS)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3
    again = dataset(packed, 8, transform=Resize(16), shuffle=True, seed=3, **PLACE)
    assert [numbers(again) for _ in range(3)] == epochs
    resumed = dataset(packed, 8, transform=Resize(16), shuffle=True, seed=3, epoch=1, **PLACE)
    assert [numbers(resumed) for _ in range(2)] == epochs[1:]
    assert numbers(dataset(packed, 8, transform=Resize(16), shuffle=True, seed=4, **PLACE)) != epochs[0]


def test_tensorflows_seed_changes_no_order(packed: Manifest) -> None:
    """Ranks that set different seeds must still share one order."""
    orders = []
    try:
        for seed in (None, 0, 5):
            tf.random.set_seed(seed)
            orders.append(numbers(dataset(packed, 8, transform=Resize(16), shuffle=True, seed=3, **PLACE)))
        assert tf.random.uniform(()) == (tf.random.set_seed(5), tf.random.uniform(()))[1], "the seed is the caller's"
    finally:
        tf.random.set_seed(None)
    assert orders[0] == orders[1] == orders[2]


def test_without_a_transform_images_stay_encoded(packed: Manifest, photos: Path) -> None:
    images, labels = next(iter(dataset(packed, NUM_PHOTOS, **PLACE)))
    assert images.numpy().tolist() == [path.read_bytes() for path in sorted(photos.glob("*/*.png"))]
    assert labels.numpy().tolist() == PackedSamples(packed).labels.tolist()


def test_label_offset_is_taken_off(tmp_path: Path) -> None:
    schema = Schema.of({"image": "bytes", "label": "int64"}, ("ant", "bee"), label_offset=1)
    samples = [Sample(str(i), {"image": image(i), "label": 1 + i % 2}) for i in range(4)]
    manifest = pack_samples(tmp_path, schema, samples, num_shards=1)
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


def test_labels_of_varying_length_are_ragged(tmp_path: Path) -> None:
    schema = Schema.of({"image": "bytes", "label": "int64[?]"})
    samples = [Sample(str(i), {"image": image(i), "label": np.arange(i, dtype="int64")}) for i in range(4)]
    images, labels = next(iter(dataset(pack_samples(tmp_path, schema, samples, num_shards=1), 4, **PLACE)))
    assert images.shape == (4,)
    assert labels.to_list() == [list(range(i)) for i in range(4)]


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


def test_wrong_arguments_are_refused(tmp_path: Path, packed: Manifest) -> None:
    schema = Schema.of({"points": "float32[3,?]"})
    samples = [Sample("a", {"points": np.zeros((3, 2), "float32")})]
    with pytest.raises(SchemaError, match="'points'"):
        dataset(pack_samples(tmp_path, schema, samples, num_shards=1), 1, **PLACE)
    with pytest.raises(UsageError, match="no complete batch"):
        dataset(packed, 30, drop_remainder=True, rank=0, world_size=2)
    with pytest.raises(UsageError, match="shuffle='yes': expected"):
        dataset(packed, 5, shuffle="yes", **PLACE)
    with pytest.raises(UsageError, match="end='nope': expected drop, mask, pad"):
        dataset(packed, 5, end="nope", **PLACE)
    with pytest.raises(UsageError, match="both or neither"):
        dataset(packed, 4, rank=0)


def test_an_image_that_cannot_be_decoded_is_named(tmp_path: Path) -> None:
    schema = Schema.of({"image": "bytes", "label": "int64"})
    samples = [Sample(f"some/{i}.png", {"image": b"no image", "label": 0}) for i in range(3)]
    manifest = pack_samples(tmp_path, schema, samples, num_shards=1)
    with pytest.raises(tf.errors.OpError, match=r"sample 'some/0\.png': the image cannot be decoded"):
        list(dataset(manifest, 2, transform=Resize(8), **PLACE))


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
def test_a_damaged_or_missing_shard_is_named(
    packed: Manifest, tmp_path: Path, damage: Callable[[Path], object], problem: str, shuffle: bool
) -> None:
    folder = Path(shutil.copytree(packed.root, tmp_path / "copy"))
    damage(folder / packed.shards[2].files[0].name)
    with pytest.raises(tf.errors.OpError, match=problem):
        list(dataset(folder, 4, transform=Resize(8), shuffle=shuffle, **PLACE))


def test_damaged_samples_are_replaced_up_to_a_number(tmp_path: Path) -> None:
    schema = Schema.of({"image": "bytes", "label": "int64"})
    samples = [Sample(str(i), {"image": b"no image" if i in (1, 5) else image(i), "label": i}) for i in range(8)]
    manifest = pack_samples(tmp_path, schema, samples, num_shards=2)
    batches = dataset(manifest, 4, transform=Resize(8), max_skipped=2, end="mask", **PLACE)
    rows = [row for _, *columns in batches for row in zip(*(c.numpy().tolist() for c in columns), strict=True)]
    assert len(rows) == 8 and {label for label, _ in rows} == {0, 2, 3, 4, 6, 7}
    assert [weight for _, weight in rows] == [1, 0, 1, 1, 1, 0, 1, 1]
    with pytest.raises(tf.errors.OpError, match=r"sample '[15]': the image cannot be decoded"):
        list(dataset(manifest, 4, transform=Resize(8), max_skipped=1, **PLACE))


@pytest.mark.parametrize("steps", [0, 2, 6])
def test_a_run_resumes_with_other_ranks_and_batch_sizes(packed: Manifest, steps: int) -> None:
    options: dict[str, Any] = {"transform": Resize(16), "shuffle": True, "seed": 3, "end": "mask"}
    whole = dataset(packed, 8, **options, **PLACE)
    epochs = [numbers(whole) for _ in range(3)]
    state = json.loads(json.dumps(whole.state_after(1, steps)))
    parts = [dataset(packed, 3, **options, rank=rank, world_size=2, state=state) for rank in range(2)]
    seen = [row for part in parts for row in seen_once(part)]
    assert sorted(seen) == sorted(epochs[1][steps * 8 :] or epochs[2])
    assert len({tuple(part.state_after(1, 1).items()) for part in parts}) == 1
    if 0 < steps < 6:
        assert sorted(row for part in parts for row in seen_once(part)) == sorted(epochs[2])


def seen_once(batches: tf.data.Dataset) -> list[int]:
    return [n for images, _, weights in batches for n in images.numpy()[weights.numpy() > 0][:, 0, 0, 0].tolist()]


def test_torch_and_tensorflow_resume_each_other(packed: Manifest) -> None:
    options: dict[str, Any] = {"shuffle": True, "seed": 3}
    batches = dataset(packed, 8, transform=Resize(16), **options, **PLACE)
    loader = torch_loaders.DataLoader(torch_loaders.PackedDataset(packed, transform=Resize(16)), 8, **options, **PLACE)
    epochs = [numbers([(images.permute(0, 2, 3, 1), labels) for images, labels in loader]) for _ in range(2)]
    loader.load_state_dict(batches.state_after(0, 4))
    assert loader.state_dict() == batches.state_after(0, 4)
    started = iter(loader)
    assert numbers([next(started)[0].permute(0, 2, 3, 1)[None]]) == epochs[0][32:40]
    resumed = dataset(packed, 8, transform=Resize(16), state=loader.state_dict(), **options, **PLACE)
    assert resumed.cardinality() == tf.data.UNKNOWN_CARDINALITY
    assert [numbers(resumed) for _ in range(2)] == [epochs[0][40:], epochs[1]]
    assert resumed.state_after(0, 1) == batches.state_after(1, 0)
    with pytest.raises(UsageError, match="7 batches of epoch 1: expected 0 to 6"):
        batches.state_after(1, 7)
    with pytest.raises(UsageError, match="seed=3, this loader has seed=4"):
        dataset(packed, 8, seed=4, shuffle=True, state=batches.state_after(0, 1), **PLACE)


def test_a_state_lies_in_a_checkpoint_of_tensorflow(packed: Manifest, tmp_path: Path) -> None:
    batches = dataset(packed, 8, shuffle=True, **PLACE)
    saved = tf.Variable(json.dumps(batches.state_after(2, 3)))
    path = tf.train.Checkpoint(data=saved).save(tmp_path / "checkpoint")
    restored = tf.Variable("")
    tf.train.Checkpoint(data=restored).restore(path)
    assert json.loads(restored.numpy()) == batches.state_after(2, 3)


@pytest.mark.parametrize("derive", [lambda batches: batches, lambda batches: batches.repeat().prefetch(2)])
def test_an_abandoned_iterator_leaves_no_thread(packed: Manifest, derive: Callable[[Any], Any]) -> None:
    iterator = iter(derive(dataset(packed, 4, transform=Resize(16), **PLACE)))
    next(iterator)
    assert dlio_threads()
    del iterator
    gc.collect()
    assert not dlio_threads()
    for _ in derive(dataset(packed, 4, transform=Resize(16), **PLACE)):
        break
    gc.collect()


def test_images_are_not_copied(packed: Manifest) -> None:
    batches = dataset(packed, 40, transform=Resize(128), **PLACE)
    images, _ = next(iter(batches))
    made = np.asarray(memoryview(images))
    kept = batches._loader.source.samples.memory._kept
    assert any(np.shares_memory(made, np.frombuffer(piece._aligned, np.uint8)) for piece in kept)


def test_keras_fits(packed: Manifest) -> None:
    keras = tf.keras
    model = keras.Sequential([keras.Input((16, 16, 3)), keras.layers.Flatten(), keras.layers.Dense(3)])
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    history = model.fit(
        dataset(packed, 8, transform=Resize(16), shuffle=True, **PLACE), epochs=2, verbose=0, shuffle=False
    )
    assert len(history.history["loss"]) == 2
