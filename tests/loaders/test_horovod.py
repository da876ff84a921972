"""Ranks that Horovod started, by the variables that horovodrun sets in each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from dlio.dataset.manifest import Manifest
from dlio.images import Resize
from tests.helpers.lazy import Lazy

DataLoader = Lazy("dlio.loaders.torch", "DataLoader")
PackedDataset = Lazy("dlio.loaders.torch", "PackedDataset")
tensorflow = Lazy("dlio.loaders.tensorflow")
ALL = list(range(41))
WORLD_SIZE = 4


@pytest.fixture(autouse=True)
def leaves_nothing_behind() -> Iterator[None]:
    """TensorFlow keeps its own threads, and iterators that it collects when it likes."""
    yield


def by_torch(packed: Manifest) -> list[int]:
    loader = DataLoader(PackedDataset(packed, Resize(16)), 3, shuffle=True, end="mask")
    seen = [photo for images, _, valid in loader for photo in images[valid][:, 0, 0, 0].tolist()]
    loader.close()
    return seen


def by_tensorflow(packed: Manifest) -> list[int]:
    batches = tensorflow.dataset(packed, 3, transform=Resize(16), shuffle=True, end="mask")
    return [int(photo) for images, _, weights in batches for photo in images.numpy()[weights.numpy() > 0][:, 0, 0, 0]]


@pytest.mark.parametrize("read", [by_torch, by_tensorflow])
def test_horovods_ranks_see_every_photo_once(
    packed: Manifest, monkeypatch: pytest.MonkeyPatch, read: Callable[[Manifest], list[int]]
) -> None:
    seen: list[Any] = []
    for rank in range(WORLD_SIZE):
        local, node = rank % 2, rank // 2
        numbers = {"RANK": rank, "SIZE": WORLD_SIZE, "LOCAL_RANK": local, "LOCAL_SIZE": 2}
        for name, value in (numbers | {"CROSS_RANK": node, "CROSS_SIZE": 2}).items():
            monkeypatch.setenv(f"HOROVOD_{name}", str(value))
        seen += read(packed)
    assert sorted(seen) == ALL
