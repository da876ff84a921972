"""Sets as people have them, from their files to training: adopted or packed, verified, staged, trained on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import dlio
from dlio.images import Resize
from dlio.pack.index import index
from dlio.sources import open_source
from dlio.targets import WithTargets
from tests.conformance.test_adopted import WRITERS
from tests.conformance.test_sources import INPUTS
from tests.helpers.images import make_image_folder
from tests.helpers.lazy import Lazy
from tests.helpers.web import served

torch = Lazy("torch")
DataLoader = Lazy("dlio.loaders.torch", "DataLoader")
Mixture = Lazy("dlio.loaders.torch", "Mixture")
PackedDataset = Lazy("dlio.loaders.torch", "PackedDataset")
EPOCHS = 4
SMALL = Resize(8)


def train(data: Path | Mixture, count: int, transform: Any) -> None:
    """Trains a model on the images' labels; every epoch has all samples, and the model learns."""
    dataset = PackedDataset(data, transform)
    loader = DataLoader(dataset, count, shuffle=True, seed=0, num_workers=1)
    torch.manual_seed(0)
    model = torch.nn.Linear(3 * 8 * 8, 1)
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.005), []
    for _ in range(EPOCHS):
        [batch] = loader
        images, wanted = (batch["image"], numbers_of(batch)) if isinstance(batch, dict) else batch
        assert len(images) == count
        told = model(images.flatten(1).float() / 255).squeeze(1)
        loss = torch.nn.functional.mse_loss(told, torch.as_tensor(wanted).float())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    loader.close()


def numbers_of(batch: dict[str, Any]) -> Any:
    """Returns the label of each image, else the number of its boxes, else the mean of its mask."""
    if "label" in batch:
        return batch["label"]
    if "boxes" in batch:
        return [len(boxes) for boxes in batch["boxes"]]
    return [float(mask.float().mean()) / 255 for mask in batch["mask"]]


def run(root: Path | str, node: Path, transform: Any = SMALL) -> None:
    assert dlio.verify(root, workers=1) == []
    staged = dlio.stage(root, node)
    train(staged.root, staged.num_samples, transform)


@pytest.mark.parametrize("name", WRITERS)
def test_adopted_shards(tmp_path, name):
    (tmp_path / "theirs").mkdir()
    WRITERS[name](tmp_path / "theirs")
    index(tmp_path / "theirs", format=name, workers=1)
    run(tmp_path / "theirs", tmp_path / "node")


@pytest.mark.parametrize("name", ["parquet", "arrow", "coco", "voc", "masks"])
def test_packed_sources(tmp_path, name):
    dlio.pack(open_source(INPUTS[name](tmp_path / "in")), tmp_path / "out", engine="serial")
    run(
        tmp_path / "out",
        tmp_path / "node",
        WithTargets(SMALL, plain=("objects_box", "depth")) if name in ("parquet", "arrow") else SMALL,
    )


def split(root: Path) -> Path:
    return dlio.split(root / "packed", root / "parts", fractions=[0.7, 0.3], by="class")["train"].root


def select(root: Path) -> Path:
    return dlio.select(root / "packed", root / "some", where=["key=*[0-3].png"]).root


def merge(root: Path) -> Path:
    return dlio.merge([split(root), root / "parts" / "val"], root / "whole").root


def append(root: Path) -> Path:
    make_image_folder(root / "photos", {"cat": 9, "owl": 3})
    return dlio.pack(root / "photos", root / "packed", append=True, engine="serial").root


@pytest.mark.parametrize("make", [split, select, merge, append])
def test_sets_made_of_others(tmp_path, make: Callable[[Path], Path]):
    make_image_folder(tmp_path / "photos", {"cat": 7, "dog": 6})
    dlio.pack(tmp_path / "photos", tmp_path / "packed", engine="serial", num_shards=2, classes=["cat", "dog", "owl"])
    run(make(tmp_path), tmp_path / "node")


def test_a_mixture(tmp_path):
    make_image_folder(tmp_path / "photos", {"cat": 6, "dog": 6})
    dlio.pack(tmp_path / "photos", tmp_path / "packed", engine="serial", num_shards=2)
    parts = dlio.split(tmp_path / "packed", tmp_path / "parts", fractions=[0.5, 0.5])
    roots = [dlio.stage(part.root, tmp_path / "node").root for part in parts.values()]
    train(Mixture([(roots[0], 0.7), (roots[1], 0.3)]), 12, SMALL)


class TestAtAUrl:
    @pytest.fixture(autouse=True)
    def leaves_nothing_behind(self) -> None:
        """fsspec keeps a thread for its requests, and connections."""

    def test_a_set_at_a_url(self, tmp_path):
        pytest.importorskip("aiohttp")
        make_image_folder(tmp_path / "photos", {"cat": 3, "dog": 3})
        dlio.pack(tmp_path / "photos", tmp_path / "packed", engine="serial", num_shards=2)
        with served(tmp_path) as url:
            run(f"{url}/packed", tmp_path / "node")
