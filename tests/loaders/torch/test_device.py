"""Batches on a device, and their floats."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest

import dlio
from dlio import native
from dlio.dataset.manifest import Manifest
from dlio.errors import UsageError
from dlio.images import Normalize, RandomResizedCrop, Resize
from tests.helpers.images import photo
from tests.helpers.lazy import Lazy

torch = Lazy("torch")
FakeTensorMode = Lazy("torch._subclasses.fake_tensor", "FakeTensorMode")
DataLoader = Lazy("dlio.loaders.torch", "DataLoader")
PackedDataset = Lazy("dlio.loaders.torch", "PackedDataset")
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
NEEDS_GPU = pytest.mark.skipif("not torch.cuda.is_available()", reason="needs a GPU")  # a text, so not at collection
DEVICES = ["cpu", pytest.param("cuda", marks=NEEDS_GPU)]


def _loader(packed: Manifest, device: str | None, **options: object) -> DataLoader:
    dataset = PackedDataset(packed, transform=RandomResizedCrop(16, flip=True))
    return DataLoader(dataset, 4, shuffle=True, seed=3, num_workers=2, device=device, **options)


@pytest.mark.parametrize("device", DEVICES)
def test_batches_on_a_device_are_those_without(packed: Manifest, device: str) -> None:
    plain, there = list(_loader(packed, None)), list(_loader(packed, device))
    assert len(there) == len(plain)
    for (images, labels), (images_there, labels_there) in zip(plain, there, strict=True):
        assert images_there.device.type == labels_there.device.type == device
        assert torch.equal(images_there.cpu(), images) and torch.equal(labels_there.cpu(), labels)


@NEEDS_GPU
def test_a_busy_gpu_reads_the_batches_that_were_given(tmp_path: Path) -> None:
    """Each batch is read long after its tensors are deleted, and while later ones are copied."""
    (folder := tmp_path / "images" / "some").mkdir(parents=True)
    for number in range(96):
        photo(256, 256, number).save(folder / f"{number}.jpg")
    packed = dlio.pack(dlio.sources.image_folder(folder.parent), tmp_path / "packed", engine="serial")
    options = {"shuffle": True, "num_workers": 4, "transform": RandomResizedCrop(224, flip=True)}
    expected = [images.long().sum().item() for images, _ in DataLoader(packed, 8, **options)]
    found = []
    large = torch.empty(1 << 30, dtype=torch.uint8).pin_memory()
    with torch.cuda.stream(torch.cuda.Stream()):
        _copies = [large.to("cuda", non_blocking=True) for _ in range(4)]  # before which no batch arrives
    for images, _ in DataLoader(packed, 8, device="cuda", **options):
        at_once = images.long().sum()  # it waits for the batch
        torch.cuda._sleep(20_000_000)  # some 10 ms, in which later batches arrive
        found.append((at_once, images.long().sum()))
        del images
    assert [(first.item(), second.item()) for first, second in found] == [(each, each) for each in expected]


@pytest.mark.parametrize("device", DEVICES)
def test_the_state_counts_the_batch_in_use(packed: Manifest, device: str) -> None:
    loader, plain = _loader(packed, device), _loader(packed, None)
    for _, _ in zip(range(3), loader, strict=False):
        pass
    for _, _ in zip(range(3), plain, strict=False):
        pass
    assert loader.state_dict() == plain.state_dict()
    resumed = _loader(packed, device)
    resumed.load_state_dict(loader.state_dict())
    rest = [labels.tolist() for _, labels in list(_loader(packed, None))[3:]]
    assert [labels.tolist() for _, labels in resumed] == rest


@pytest.mark.parametrize("device", DEVICES)
def test_an_order_of_ones_own_is_copied_too(packed: Manifest, device: str) -> None:
    dataset = PackedDataset(packed, transform=Resize(8))
    (batch,) = DataLoader(dataset, batch_sampler=[[3, 1, 2]], device=device)
    assert batch[0].device.type == device and len(batch[0]) == 3


@pytest.mark.parametrize("device", ["gpu", "cuda:99", "privateuseone", "meta"])
def test_a_device_that_cannot_be_used_is_named(packed: Manifest, device: str) -> None:
    with pytest.raises(UsageError, match=f"device='{device}' cannot be used: "):
        _loader(packed, device)


@pytest.mark.parametrize("device", DEVICES)
def test_what_holds_the_tensors_keeps_its_type(packed: Manifest, device: str) -> None:
    def collated(samples: list[tuple[torch.Tensor, int]]) -> OrderedDict[str, object]:
        return OrderedDict(images=torch.stack([image for image, _ in samples]), name="a batch")

    dataset = PackedDataset(packed, transform=Resize(8))
    for batch in DataLoader(dataset, 2, collate_fn=collated, device=device):
        assert isinstance(batch, OrderedDict) and batch["name"] == "a batch"
        assert batch["images"].device.type == device


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("device", DEVICES)
def test_floats_are_those_of_the_formula(
    device: str, dtype: str, channels_last: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the core and without; NumPy's arrays have their channels last."""
    normalize = Normalize(MEAN, STD, dtype, channels_last)
    images = torch.randint(0, 256, (3, 3, 70, 61), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    mean, std = (torch.tensor(each).view(1, 3, 1, 1) for each in (MEAN, STD))
    expected = images.float().div(torch.tensor(255.0)).sub(mean).div(std).to(getattr(torch, dtype))
    for has_core in {native.available, False}:
        monkeypatch.setattr(native, "available", has_core)
        found = normalize(images.to(device))
        assert found.device.type == device and torch.equal(found.cpu(), expected)
        layout = torch.channels_last if channels_last else torch.contiguous_format
        assert found.is_contiguous(memory_format=layout)
        assert torch.equal(normalize(images.to(device, memory_format=torch.channels_last)).cpu(), expected)
        if dtype != "bfloat16":
            rows = normalize(images.permute(0, 2, 3, 1).numpy())
            assert rows.dtype == dtype and np.array_equal(rows, expected.permute(0, 2, 3, 1).numpy())


def test_normalize_in_a_compiled_model_gives_the_same() -> None:
    normalize, images = Normalize(MEAN, STD), torch.arange(2 * 3 * 5 * 7).reshape(2, 3, 5, 7).to(torch.uint8)

    def model(images: torch.Tensor) -> torch.Tensor:
        return normalize(images).mean(dim=(2, 3))

    assert torch.equal(torch.compile(model, backend="eager")(images), model(images))
    with FakeTensorMode():  # which has shapes and no memory
        assert normalize(torch.empty(2, 3, 5, 7, dtype=torch.uint8)).shape == (2, 3, 5, 7)


def test_wrong_normalizations_and_batches_are_named() -> None:
    for mean, std in (((), ()), ((0.5,), (0.1, 0.2)), ((0.5,), (0.0,)), ((float("nan"),), (1.0,))):
        with pytest.raises(UsageError, match="expected"):
            Normalize(mean, std)
    with pytest.raises(UsageError, match="dtype='int8': expected float32, float16, bfloat16"):
        Normalize(MEAN, STD, "int8")
    normalize = Normalize(MEAN, STD)
    for images in (torch.zeros(2, 3, 4, 4), torch.zeros(2, 4, 4, 3, dtype=torch.uint8), np.zeros((4, 4, 3), np.uint8)):
        with pytest.raises(UsageError, match="expected uint8 images with 3 channels"):
            normalize(images)
    with pytest.raises(UsageError, match="NumPy has no bfloat16"):
        Normalize(MEAN, STD, "bfloat16")(np.zeros((1, 4, 4, 3), np.uint8))


@pytest.mark.skipif(not native.available, reason="needs the core")
def test_the_core_refuses_arrays_that_do_not_fit() -> None:
    images, tables = np.zeros((2, 3, 4, 5), np.uint8), np.zeros((3, 256), np.uint16)
    for out, axes in (
        (np.zeros((2, 4, 5, 3), np.uint16), (1, 1)),
        (np.zeros((2, 3, 4, 4), np.uint16), (1, 1)),
        (np.zeros((1, 3, 4, 5), np.uint16), (1, 1)),
        (np.zeros((2, 3, 4, 5), np.uint16), (3, 3)),
        (np.zeros((2, 3, 4, 5), np.uint16), (0, 2)),
    ):
        with pytest.raises(ValueError, match="expected"):
            native.normalize(images, tables, out, *axes)
    with pytest.raises(TypeError):
        native.normalize(images, tables, np.zeros((2, 3, 4, 5), np.uint32), 1, 1)
    empty = np.zeros((0, 3, 4, 5), np.uint16)
    native.normalize(images[:0], tables, empty, 1, 1)
