"""JAX: global arrays of the same samples, on the devices that the sharding names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from dlio.dataset.manifest import Manifest
from dlio.dataset.schema import Sample, Schema
from dlio.errors import UsageError
from dlio.images import RandomResizedCrop, Resize
from dlio.loaders.dataset import PackedSamples
from dlio.loaders.loader import ArrayBatches, Loader
from tests.helpers.images import encoded, image
from tests.helpers.lazy import Lazy
from tests.loaders.packing import pack_samples
from tests.loaders.photos import NUM_PHOTOS, numbers
from tests.loaders.ranks import free_ports, run_job

jax = Lazy("jax")
DataLoader = Lazy("dlio.loaders.jax", "DataLoader")
TRANSFORM = RandomResizedCrop(16, flip=True)


@pytest.fixture(autouse=True)
def leaves_nothing_behind() -> Any:
    """JAX keeps its own threads."""
    yield


def test_batches_are_those_of_every_loader(packed: Manifest) -> None:
    source = ArrayBatches(PackedSamples(packed, TRANSFORM), channels_last=True, mask=True)
    expected = Loader(source, 4, shuffle=True, seed=7, end="mask")
    loader = DataLoader(packed, 4, transform=TRANSFORM, shuffle=True, seed=7, end="mask")
    for _ in range(2):
        made = list(loader)  # kept, so that memory that is used again would be seen
        wanted = [{name: value.copy() for name, value in batch.items()} for batch in expected]
        assert len(made) == len(wanted) == len(loader) == 11
        for (images, labels, valid), batch in zip(made, wanted, strict=True):
            size = len(batch["label"])
            assert images.shape == (4, 16, 16, 3) and valid.tolist() == [*batch["valid"], *[False] * (4 - size)]
            assert np.array_equal(images[:size], batch["image"]) and np.array_equal(labels[:size], batch["label"])
    loader.close()


@pytest.mark.parametrize("lanes", [1, 3])
def test_the_last_batch_is_filled_with_samples_of_its_own(packed: Manifest, lanes: int) -> None:
    words: dict[str, Any] = {"transform": Resize(16), "shuffle": True, "lanes": lanes}
    wanted, made = list(Loader(packed, 6, **words)), list(DataLoader(packed, 6, **words))
    assert len(made) == len(wanted) and {images.shape for images, _ in made} == {(6, 16, 16, 3)}
    for (images, labels), batch in zip(made, wanted, strict=True):
        size = len(batch["label"])
        assert np.array_equal(images[:size], batch["image"]) and np.array_equal(labels[:size], batch["label"])
        assert set(numbers([[images[size:]]])) <= set(numbers([batch])) and (size == 6 or batch is wanted[-1])


def test_masks_move_with_their_images(tmp_path: Path) -> None:
    mask = encoded(Image.fromarray(np.arange(1200, dtype="uint8").reshape(30, 40), "L"), "PNG")
    fields = {"image": image(1, width=40, height=30), "mask": mask}
    samples = [Sample(str(number), fields) for number in range(4)]
    pack_samples(tmp_path, Schema.of({"image": "bytes", "mask": "bytes"}), samples, num_shards=1)
    source = ArrayBatches(PackedSamples(tmp_path, TRANSFORM), channels_last=True)
    [expected] = Loader(source, 4, num_workers=0)
    loader = DataLoader(tmp_path, 4, transform=TRANSFORM)
    [batch] = loader
    loader.close()
    assert batch["mask"].shape == (4, 16, 16) and np.array_equal(batch["mask"], expected["mask"])


def test_orbax_saves_and_restores_the_state(packed: Manifest, tmp_path: Path) -> None:
    ocp = pytest.importorskip("orbax.checkpoint", reason="needs orbax-checkpoint: pip install orbax-checkpoint")
    loaders = [DataLoader(packed, 4, transform=TRANSFORM, shuffle=True, end="drop") for _ in range(2)]
    batches = iter(loaders[0])
    for _ in range(3):
        next(batches)
    with ocp.CheckpointManager(tmp_path / "checkpoints") as manager:
        manager.save(3, args=ocp.args.Composite(loader=ocp.args.JsonSave(loaders[0].state_dict())))
        manager.wait_until_finished()
        restored = manager.restore(3, args=ocp.args.Composite(loader=ocp.args.JsonRestore()))
    loaders[1].load_state_dict(restored.loader)
    left, resumed = list(batches), list(loaders[1])
    assert len(left) == len(resumed) == 7
    for (images, labels), (same_images, same_labels) in zip(left, resumed, strict=True):
        assert np.array_equal(images, same_images) and np.array_equal(labels, same_labels)
    assert loaders[0].state_dict() == loaders[1].state_dict() and loaders[0].state_dict()["epoch"] == 1


@pytest.fixture(scope="module")
def processes(packed: Manifest, tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """What two processes with two devices each read."""
    shared = {"COORDINATOR": f"127.0.0.1:{free_ports(1)[0]}", "JAX_PLATFORMS": "cpu"}
    shared |= {"XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    environments = [shared | {"PROCESS": str(number)} for number in range(2)]
    return run_job("jax_job", packed.root, tmp_path_factory.mktemp("jax"), environments)


@pytest.mark.parametrize(
    ("sharding", "held"),
    [
        ("default", [{0: (0, 2), 1: (2, 4)}, {0: (4, 6), 1: (6, 8)}]),
        ("two by two", [{0: (0, 4), 1: (0, 4)}, {0: (4, 8), 1: (4, 8)}]),
        ("replicated", [{0: (0, 8), 1: (0, 8)}, {0: (0, 8), 1: (0, 8)}]),
    ],
)
def test_each_device_gets_its_rows_of_the_global_batch(
    processes: list[Any], packed: Manifest, sharding: str, held: list[dict[int, tuple[int, int]]]
) -> None:
    source = ArrayBatches(PackedSamples(packed, Resize(16)), channels_last=True)
    expected = Loader(source, 8, shuffle=True, end="drop")
    for epoch in range(2):
        wanted = [numbers([[batch["image"]]]) for batch in expected]
        assert len(wanted) == NUM_PHOTOS // 8
        for process, slices in enumerate(held):
            found = processes[process][sharding][epoch]
            assert len(found) == len(wanted)
            for batch, rows in zip(found, wanted, strict=True):
                assert sorted(batch.values()) == sorted(rows[begin:end] for begin, end in slices.values())
                assert all(rows[int(at.split()[0]) :][: len(row)] == row for at, row in batch.items())


def test_rows_that_are_no_block_are_refused(processes: list[Any]) -> None:
    assert all("order the mesh" in process["refused"] for process in processes)


def test_what_has_no_fixed_shape_is_refused(packed: Manifest) -> None:
    with pytest.raises(UsageError, match="cannot become a JAX array: give a transform"):
        DataLoader(packed, 4)
    with pytest.raises(UsageError, match="rank= and world_size=: in JAX the sharding says"):
        DataLoader(packed, 4, transform=TRANSFORM, rank=0, world_size=1)
    with pytest.raises(UsageError, match="batch_size=0"):
        DataLoader(packed, 0, transform=TRANSFORM)
