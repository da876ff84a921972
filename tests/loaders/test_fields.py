"""Fields that are left out, mixed, or padded: alike in every loader."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dlio.dataset.manifest import Manifest
from dlio.dataset.schema import Sample, Schema
from dlio.errors import CorruptRecordError, UsageError
from dlio.images import CutMix, Mixup, RandomChoice, RandomResizedCrop, RandomVerticalFlip, Resize, TrivialAugmentWide
from dlio.loaders import batches
from dlio.loaders.dataset import PackedSamples
from dlio.loaders.loader import ArrayBatches, Loader
from dlio.targets import WithTargets
from tests.helpers.images import image
from tests.helpers.lazy import Lazy
from tests.loaders.packing import pack_samples

torch_loaders = Lazy("dlio.loaders.torch")
tensorflow = Lazy("dlio.loaders.tensorflow")
jax = Lazy("dlio.loaders.jax")
keras = Lazy("dlio.loaders.keras")
TYPES = {"image": "bytes", "label": "int64", "boxes": "float32[?,4]", "labels": "int64[]"}
PLACE: dict[str, Any] = {"rank": 0, "world_size": 1}
MIX = [RandomResizedCrop(24, flip=True), TrivialAugmentWide(), RandomChoice([Mixup(0.2), CutMix(1.0)])]


@pytest.fixture(autouse=True)
def leaves_nothing_behind() -> Any:
    """JAX keeps its own threads, and TensorFlow its iterators."""
    yield


def sample(number: int) -> Sample:
    """Returns an image with a label and `number` % 4 boxes."""
    count = number % 4
    boxes = np.array([[4 * i, 2, 4 * i + 4, 9] for i in range(count)], "float32").reshape(-1, 4)
    fields = {"image": image(number, width=24, height=16), "label": number % 3, "boxes": boxes}
    return Sample(str(number), fields | {"labels": np.arange(count)})


@pytest.fixture(scope="module")
def detection(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve images with a label and up to three boxes."""
    folder = tmp_path_factory.mktemp("detection")
    schema = Schema.of(TYPES, ("ant", "bee", "cat"))
    pack_samples(folder, schema, [sample(number) for number in range(12)], num_shards=2)
    return folder


def in_every_loader(data: Any, transform: Any, **options: Any) -> dict[str, list[Any]]:
    """Returns the batches of four samples that each loader makes of the same words, shuffled."""
    words: dict[str, Any] = {"transform": transform, "shuffle": True, "seed": 5, "end": "drop", "num_workers": 2}
    words |= options
    loaders = {
        "loader": Loader(data, 4, **words, **PLACE),
        "torch": torch_loaders.DataLoader(data, 4, **words, **PLACE),
        "tensorflow": tensorflow.dataset(data, 4, **words, **PLACE),
        "jax": jax.DataLoader(data, 4, **words),
        "keras": keras.PackedPyDataset(data, 4, **words, **PLACE),
    }
    found = {
        name: [loader[i] for i in range(len(loader))] if name == "keras" else list(loader)
        for name, loader in loaders.items()
    }
    for loader in loaders.values():
        loader.close()
    return found


def test_other_fields_are_left_out_in_every_loader(detection: Path) -> None:
    found = in_every_loader(detection, Resize((16, 24)), fields=("image", "label"))
    wanted = found.pop("loader")
    assert all(list(batch) == ["image", "label"] for batch in wanted)
    for name, made in found.items():
        for batch, (images, labels) in zip(wanted, made, strict=True):
            axes = (0, 2, 3, 1) if name == "torch" else (0, 1, 2, 3)
            assert np.array_equal(np.asarray(images).transpose(axes), batch["image"])
            assert np.array_equal(np.asarray(labels), batch["label"])
    dataset = torch_loaders.PackedDataset(detection, fields=["image", "label"])
    picture, label = dataset[5]
    assert (picture.size, label) == ((24, 16), 2) and dataset.targets.tolist() == [0, 1, 2] * 4
    assert list(torch_loaders.PackedDataset(detection, fields=["labels"])[3]) == ["labels"]


@pytest.mark.parametrize("wrong", ["image", (), ("image", "mask")])
def test_fields_that_do_not_exist_are_named(detection: Path, wrong: Any) -> None:
    with pytest.raises(UsageError, match="which has image, label, boxes, labels"):
        PackedSamples(detection, fields=wrong)


def test_batches_are_mixed_alike_in_every_loader(packed: Manifest) -> None:
    found = in_every_loader(packed, MIX)
    wanted = found.pop("loader")
    mixed = np.concatenate([batch["label"] for batch in wanted])
    assert mixed.shape == (40, 3) and mixed.dtype == np.float32 and np.allclose(mixed.sum(axis=1), 1)
    assert ((mixed > 0.01).sum(axis=1) > 1).sum() > 8
    for name, made in found.items():
        for batch, (images, labels) in zip(wanted, made, strict=True):
            axes = (0, 2, 3, 1) if name == "torch" else (0, 1, 2, 3)
            assert np.array_equal(np.asarray(images).transpose(axes), batch["image"]), name
            assert np.array_equal(np.asarray(labels), batch["label"]) and np.asarray(labels).dtype == np.float32


def test_mixing_depends_on_seed_epoch_and_samples_only(packed: Manifest) -> None:
    runs = []
    for threads in (0, 3):
        samples = PackedSamples(packed, MIX)
        loader = Loader(ArrayBatches(samples), 40, num_workers=threads, seed=3)
        runs.append([batch for _ in range(2) for batch in loader])
        samples.close()
    assert all(np.array_equal(a[name], b[name]) for a, b in zip(*runs, strict=True) for name in a)
    samples, rows = PackedSamples(packed, MIX), np.arange(40)  # in one order, so only the mixtures differ
    labels = [batches.make(samples, rows, key)["label"] for key in (8, 9, 8)]
    assert np.array_equal(labels[0], labels[2]) and not np.array_equal(labels[0], labels[1])
    samples.close()


def test_a_mixture_is_the_mean_of_its_images_and_labels(packed: Manifest) -> None:
    """Row 0 with the last row, and each other one with the row before it."""
    plain, mixed = PackedSamples(packed, Resize((24, 20))), PackedSamples(packed, [Resize((24, 20)), Mixup(1.0)])
    rows = np.arange(40)
    before, after = batches.make(plain, rows, 9), batches.make(mixed, rows, 9)
    labels = np.eye(3)[before["label"]]
    for row in rows:
        if labels[row] @ labels[row - 1] == 0:  # else their share cannot be told
            share = after["label"][row] @ labels[row]
            mean = share * before["image"][row] + (1 - share) * before["image"][row - 1]
            assert np.abs(after["image"][row] - mean).max() <= 0.6
    assert not np.array_equal(before["image"][0], after["image"][0])
    plain.close()
    mixed.close()


def test_what_cannot_be_mixed_is_named_with_two_ways_out(detection: Path, tmp_path: Path) -> None:
    with pytest.raises(
        UsageError, match=r"field 'boxes': leave it out with fields=\('image', 'label'\), or give WithT"
    ):
        PackedSamples(detection, [Resize(8), Mixup()])
    with pytest.raises(UsageError, match="has no label"):
        PackedSamples(detection, [Resize(8), Mixup()], fields=["image"])
    still = WithTargets(Resize(8), plain=("boxes", "labels"))
    samples = PackedSamples(detection, [still, CutMix(num_classes=5)])
    assert batches.make(samples, [1, 2], 0)["label"].shape == (2, 5)
    samples.close()
    samples = PackedSamples(detection, [Resize(8), CutMix(num_classes=2)], fields=["image", "label"])
    with pytest.raises(CorruptRecordError, match="sample '2': its class index 2 is none of 0 to 1"):
        batches.make(samples, [1, 2], 0)
    samples.close()


def test_boxes_move_with_augmentation_in_batches(detection: Path) -> None:
    """Upside down: the boxes of a plain batch, mirrored at its middle."""
    names = ("image", "boxes", "labels")
    plain = PackedSamples(detection, Resize((16, 24)), fields=names)
    turned = PackedSamples(detection, [Resize((16, 24)), RandomVerticalFlip(1.0)], fields=names)
    before, after = batches.make(plain, range(12), 0), batches.make(turned, range(12), 0)
    assert np.array_equal(after["image"], before["image"][:, :, ::-1])
    for given, found in zip(before["boxes"], after["boxes"], strict=True):
        assert np.array_equal(found, np.stack([given[:, 0], 16 - given[:, 3], given[:, 2], 16 - given[:, 1]], axis=1))
    plain.close()
    turned.close()


def test_boxes_are_padded_with_their_number_in_every_loader(detection: Path) -> None:
    transform = WithTargets(RandomResizedCrop(16, scale=(0.9, 1)), max_boxes=5)
    names = ("image", "boxes", "labels", "label")
    found = in_every_loader(detection, transform, fields=names)
    wanted = found.pop("loader")
    ragged = Loader(
        ArrayBatches(PackedSamples(detection, transform.transform, fields=names)),
        4,
        num_workers=0,
        shuffle=True,
        seed=5,
    )
    for batch, lists in zip(wanted, ragged, strict=True):
        assert batch["boxes"].shape == (4, 5, 4) and batch["labels"].shape == (4, 5)
        assert batch["num_boxes"].tolist() == list(map(len, lists["boxes"]))
        for row, count in enumerate(batch["num_boxes"]):
            assert np.array_equal(batch["boxes"][row, :count], lists["boxes"][row])
            assert np.array_equal(batch["labels"][row, :count], lists["labels"][row])
            assert not batch["boxes"][row, count:].any() and not batch["labels"][row, count:].any()
    for name, made in found.items():
        for batch, theirs in zip(wanted, made, strict=True):
            for field in ("boxes", "labels", "num_boxes"):
                assert np.array_equal(np.asarray(theirs[field]), batch[field]), (name, field)


def test_more_boxes_than_there_is_room_for_are_named(detection: Path) -> None:
    samples = PackedSamples(detection, WithTargets(Resize(16), max_boxes=2))
    with pytest.raises(CorruptRecordError, match=r"sample '3': .*3 boxes are more than max_boxes=2"):
        batches.make(samples, range(12), 0)
    samples.close()
    with pytest.raises(UsageError, match=r"max_boxes=2\): .* has no boxes of any number"):
        PackedSamples(detection, WithTargets(Resize(16), max_boxes=2), fields=["image"])
    with pytest.raises(UsageError, match=r"'boxes' .*max_boxes=N"):
        jax.DataLoader(detection, 4, transform=Resize(16), fields=["image", "boxes"])
