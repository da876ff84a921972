"""Decode-ready records in every framework: batches are those of the JPEGs, with a transform and without."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dlio
from dlio.images import RandomResizedCrop, Transform
from dlio.pack.recode import Recode
from dlio.sources import image_folder
from tests.helpers.decode_ready import PROGRESSIVE, needs_core, write_images
from tests.loaders.photos import dlio_threads

pytestmark = needs_core
NUM_IMAGES = 9
PLACE = {"rank": 0, "world_size": 1}


@pytest.fixture(autouse=True)
def leaves_nothing_behind() -> Iterator[None]:
    """Frameworks keep their own threads, so only those of dlio are looked for."""
    yield
    assert not dlio_threads()


@pytest.fixture(scope="module")
def twins(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Images, unchanged and decode-ready: those that come back byte for byte, and others that stay unchanged."""
    root = tmp_path_factory.mktemp("twins")
    write_images(root / "in")
    (root / "in" / PROGRESSIVE).unlink()
    for name, recode in {"plain": None, "ready": Recode(decode_ready=True)}.items():
        dlio.pack(image_folder(root / "in"), root / name, recode=recode, num_shards=2, engine="serial")
    return root / "plain", root / "ready"


def torch_batch(folder: Path, transform: Transform | None) -> Any:
    from dlio.loaders.torch import DataLoader, PackedDataset

    loader = DataLoader(PackedDataset(folder, transform), NUM_IMAGES, shuffle=True, seed=2, collate_fn=_as_it_is)
    [(images, labels)] = loader
    loader.close()
    return [np.asarray(image) for image in images], np.asarray(labels)


def _as_it_is(items: list[Any]) -> Any:
    return tuple(zip(*items, strict=True))


def torchs_own_batch(folder: Path, transform: Transform | None) -> Any:
    import torch

    from dlio.loaders.torch import PackedDataset

    torch.manual_seed(5)
    dataset = PackedDataset(folder, transform)
    [(images, labels)] = torch.utils.data.DataLoader(dataset, NUM_IMAGES, collate_fn=_as_it_is)
    dataset.packed.close()
    return [np.asarray(image) for image in images], np.asarray(labels)


def tensorflow_batch(folder: Path, transform: Transform | None) -> Any:
    pytest.importorskip("tensorflow", reason="needs tensorflow: pip install tensorflow")
    from dlio.loaders.tensorflow import dataset

    [(images, labels)] = dataset(folder, NUM_IMAGES, transform=transform, shuffle=True, seed=2, **PLACE)
    return list(images.numpy()), labels.numpy()


def keras_batch(folder: Path, transform: Transform | None) -> Any:
    pytest.importorskip("keras", reason="needs keras: pip install keras")
    from dlio.loaders.keras import PackedPyDataset

    images, labels = PackedPyDataset(folder, NUM_IMAGES, transform=transform, shuffle=True, seed=2, workers=0)[0]
    return list(images), np.asarray(labels)


def jax_batch(folder: Path, transform: Transform | None) -> Any:
    pytest.importorskip("jax", reason="needs jax: pip install jax")
    from dlio.loaders.jax import DataLoader

    loader = DataLoader(folder, NUM_IMAGES, transform=transform or RandomResizedCrop(20), shuffle=True, seed=2)
    [(images, labels)] = loader  # without a transform it would have no arrays
    loader.close()
    return list(np.asarray(images)), np.asarray(labels)


@pytest.mark.parametrize("transform", [RandomResizedCrop(48, flip=True), None], ids=["transformed", "as stored"])
@pytest.mark.parametrize("batch", [torch_batch, torchs_own_batch, tensorflow_batch, keras_batch, jax_batch])
def test_batches_are_those_of_the_jpegs(
    batch: Callable[[Path, Transform | None], Any], transform: Transform | None, twins: tuple[Path, Path]
) -> None:
    (plain, labels), (ready, same) = (batch(folder, transform) for folder in twins)
    assert len(plain) == len(ready) == NUM_IMAGES and np.array_equal(labels, same)
    for one, other in zip(plain, ready, strict=True):
        assert type(one) is type(other) and np.array_equal(np.asarray(one), np.asarray(other))
