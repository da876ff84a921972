"""Every framework gets the same batches, by digest: torch, TensorFlow, Keras, and the framework-free Loader."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from dlio.dataset.manifest import Manifest
from dlio.images import ColorJitter, Grayscale, RandomErasing, RandomResizedCrop
from dlio.loaders.dataset import PackedSamples
from dlio.loaders.loader import ArrayBatches, Loader
from dlio.loaders.sampling.order import Shuffle, Window
from tests.helpers.lazy import Lazy

if TYPE_CHECKING:
    import keras

    from dlio.loaders.keras import PackedPyDataset
    from dlio.loaders.tensorflow import dataset
else:
    keras = Lazy("keras")
    PackedPyDataset = Lazy("dlio.loaders.keras", "PackedPyDataset")
    dataset = Lazy("dlio.loaders.tensorflow", "dataset")

torch = Lazy("dlio.loaders.torch")
TRANSFORM = [RandomResizedCrop(16, flip=True), ColorJitter(0.4, 0.4, 0.4), Grayscale(0.2), RandomErasing()]
OPTIONS: dict[str, Any] = {"seed": 7, "end": "mask"}
BATCH = 4
Batch = tuple[Any, Any, Any]  # images with channels last, labels, and whether each is valid
Ranks = tuple[int, int]


@pytest.fixture(autouse=True)
def leaves_nothing_behind() -> Iterator[None]:
    """TensorFlow keeps its own threads."""
    yield


def by_loader(packed: Manifest, shuffle: Shuffle, ranks: Ranks) -> Callable[[], Iterator[Batch]]:
    source = ArrayBatches(PackedSamples(packed, TRANSFORM), channels_last=True, mask=True)
    loader = Loader(source, BATCH, shuffle=shuffle, rank=ranks[0], world_size=ranks[1], **OPTIONS)
    return lambda: ((batch["image"], batch["label"], batch["valid"]) for batch in loader)


def by_torch(packed: Manifest, shuffle: Shuffle, ranks: Ranks) -> Callable[[], Iterator[Batch]]:
    rank, world_size = ranks
    samples = torch.PackedDataset(packed, TRANSFORM)
    loader = torch.DataLoader(samples, BATCH, shuffle=shuffle, rank=rank, world_size=world_size, **OPTIONS)
    return lambda: ((images.permute(0, 2, 3, 1), labels, valid) for images, labels, valid in loader)


def by_tensorflow(packed: Manifest, shuffle: Shuffle, ranks: Ranks) -> Callable[[], Iterator[Batch]]:
    rank, world_size = ranks
    batches = dataset(packed, BATCH, transform=TRANSFORM, shuffle=shuffle, rank=rank, world_size=world_size, **OPTIONS)
    return batches.as_numpy_iterator


def by_keras(packed: Manifest, shuffle: Shuffle, ranks: Ranks) -> Callable[[], Iterator[Batch]]:
    assert keras.config.image_data_format() == "channels_last"
    batches = PackedPyDataset(
        packed, BATCH, transform=TRANSFORM, shuffle=shuffle, rank=ranks[0], world_size=ranks[1], **OPTIONS
    )

    def epoch() -> Iterator[Batch]:
        yield from (batches[number] for number in range(len(batches)))
        batches.on_epoch_end()

    return epoch


def digests(batches: Iterator[Batch]) -> list[str]:
    """Returns the digest of each batch."""
    found = []
    for images, labels, valid in batches:
        parts = (np.asarray(images, np.uint8), np.asarray(labels, np.int64), np.asarray(valid).astype(np.bool_))
        found.append(hashlib.sha256(b"".join(part.tobytes() for part in parts)).hexdigest())
    return found


@pytest.mark.parametrize("ranks", [(0, 1), (0, 3), (2, 3)], ids=str)
@pytest.mark.parametrize("shuffle", [False, True, Window(2)], ids=str)
def test_all_frameworks_get_equal_batches(packed: Manifest, shuffle: Shuffle, ranks: Ranks) -> None:
    epochs = [by(packed, shuffle, ranks) for by in (by_loader, by_torch, by_tensorflow, by_keras)]
    for _ in range(2):
        found = [digests(epoch()) for epoch in epochs]
        assert len(set(found[0])) == len(found[0]) == (11 if ranks[1] == 1 else 4)
        assert found[1:] == [found[0]] * 3


def test_the_batches_are_equal_in_every_format(packed_anyhow: Manifest, packed: Manifest) -> None:
    expected = digests(by_loader(packed, True, (0, 1))())
    assert digests(by_tensorflow(packed_anyhow, True, (0, 1))()) == expected
    assert digests(by_torch(packed_anyhow, True, (0, 1))()) == expected
