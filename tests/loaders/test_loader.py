"""Loader: every rank's batches, in one order and with the same boxes for any number of ranks and threads."""

from __future__ import annotations

import weakref
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dlio.dataset.manifest import Manifest
from dlio.dataset.schema import Sample, Schema
from dlio.errors import LauncherError, UsageError
from dlio.images import RandomResizedCrop, Resize
from dlio.loaders.batch_sources import ArrayBatches
from dlio.loaders.dataset import Batch, PackedSamples
from dlio.loaders.loader import Loader
from dlio.loaders.prefetch.work import Work
from dlio.loaders.sampling.order import Shuffle, Window
from dlio.loaders.sampling.rank_share import End, Step
from tests.loaders.packing import pack_samples
from tests.loaders.photos import NUM_PHOTOS, loader_of, numbers


@pytest.mark.parametrize("end", End)
@pytest.mark.parametrize("shuffle", [False, True, Window(2)], ids=str)
def test_ranks_see_every_sample_once_in_equal_steps(packed_anyhow: Manifest, end: End, shuffle: Shuffle) -> None:
    seen: list[int] = []
    steps = set()
    for rank in range(3):
        loader = loader_of(packed_anyhow, rank=rank, world_size=3, end=end, shuffle=shuffle)
        batches = list(loader)
        steps.add((len(loader), *(len(batch["label"]) for batch in batches)))
        valid = [batch.get("valid", np.ones(len(batch["label"]), bool)) for batch in batches]
        seen += [n for n, ok in zip(numbers(batches), np.concatenate(valid), strict=True) if ok]
        loader.close()
    assert len(steps) == 1
    if end is End.MASK:
        assert sorted(seen) == list(range(NUM_PHOTOS))
    elif end is End.PAD:
        assert set(seen) == set(range(NUM_PHOTOS)) and len(seen) == NUM_PHOTOS + 1
    else:
        assert len(set(seen)) == len(seen) == 36


def test_a_field_named_valid_is_not_hidden_by_the_mask(tmp_path: Path) -> None:
    samples = [Sample(str(i), {"valid": i}) for i in range(6)]
    packed = PackedSamples(pack_samples(tmp_path, Schema.of({"valid": "int64"}), samples, num_shards=1))
    with pytest.raises(UsageError, match="has a field 'valid'"):
        ArrayBatches(packed, mask=True)
    loader = Loader(ArrayBatches(packed), 4, end=End.PAD, rank_and_size=lambda: (0, 1), num_workers=0)
    assert [batch["valid"].tolist() for batch in loader] == [[0, 1, 2, 3], [4, 5]]
    loader.close()


def test_threads_share_a_batch_of_large_samples_if_the_storage_is_quick(packed: Manifest) -> None:
    samples = PackedSamples(packed, Resize(8))
    vars(samples)["sample_bytes"] = 100_000
    step = Step(np.zeros(256, np.int64), np.ones(256, bool))

    def num_parts(seconds_waited: float) -> int:
        for _ in range(15):
            samples.opened.pace.note(seconds_waited)
        return len(ArrayBatches(samples).work(step, 0).parts)

    assert (num_parts(0), num_parts(1)) == (4, 4)  # for any number of threads
    Loader(ArrayBatches(samples), 256, rank_and_size=lambda: (0, 1), num_workers=2)
    assert (num_parts(0), num_parts(1)) == (2, 4)  # small parts are read ahead


# Must never change: a run resumed after an upgrade continues in the same order.
ORDER = [39, 24, 13, 16, 21, 8, 11, 23, 2, 10, 15, 32, 28, 20, 26, 40, 35, 17, 30, 36]
ORDER += [33, 9, 22, 38, 34, 37, 12, 25, 14, 6, 1, 5, 29, 18, 19, 3, 4, 0, 31, 7]


def test_the_order_is_independent_of_format_and_threads(packed_anyhow: Manifest) -> None:
    orders = []
    for num_threads in (0, 1, 5):
        loader = loader_of(packed_anyhow, num_workers=num_threads, shuffle=True, seed=3)
        orders.append(numbers(loader))
        loader.close()
    assert orders == [ORDER] * 3


def test_batches_hold_images_labels_and_whatever_else(packed: Manifest) -> None:
    loader = loader_of(packed, 8)
    batch = next(iter(loader))
    assert list(batch) == ["image", "label"]
    assert batch["image"].shape == (8, 3, 16, 16) and batch["image"].dtype == np.uint8
    assert batch["label"].dtype == np.int64 and batch["label"].tolist() == [0] * 8
    loader.close()


def test_without_a_transform_images_stay_encoded(packed: Manifest, photos: Path) -> None:
    loader = Loader(ArrayBatches(PackedSamples(packed)), 41, rank_and_size=lambda: (0, 1))
    assert next(iter(loader))["image"] == [path.read_bytes() for path in sorted(photos.glob("*/*.png"))]
    loader.close()


def test_each_epoch_has_a_reproducible_order_and_boxes(packed: Manifest) -> None:
    def run() -> list[list[np.ndarray]]:
        samples = PackedSamples(packed, RandomResizedCrop(16, flip=True))
        loader = Loader(ArrayBatches(samples), 41, shuffle=True, seed=5, rank_and_size=lambda: (0, 1), num_workers=2)
        epochs = [[next(iter(loader))["image"]] for _ in range(3)]
        loader.close()
        return epochs

    first, second = run(), run()
    assert all((a[0] == b[0]).all() for a, b in zip(first, second, strict=True))
    assert (first[0][0] != first[1][0]).any() and (first[1][0] != first[2][0]).any()


def test_boxes_do_not_depend_on_ranks_or_threads(packed: Manifest) -> None:
    def images(world_size: int, num_threads: int) -> np.ndarray:
        made = []
        for rank in range(world_size):
            samples = PackedSamples(packed, RandomResizedCrop(16, flip=True))
            source = ArrayBatches(samples)
            loader = Loader(
                source, 40 // world_size, rank_and_size=partial(tuple, (rank, world_size)), num_workers=num_threads
            )
            made.append(next(iter(loader))["image"])
            loader.close()
        return np.concatenate(made)

    assert (images(1, 0) == images(4, 3)).all()


def test_the_rank_comes_from_the_launcher(packed: Manifest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DLIO_LAUNCHER", "torchrun")
    loader = Loader(packed, 4, transform=Resize(8), end="drop")
    with pytest.raises(LauncherError):
        len(loader)
    variables = {
        "RANK": 3,
        "WORLD_SIZE": 5,
        "LOCAL_RANK": 0,
        "LOCAL_WORLD_SIZE": 1,
        "GROUP_RANK": 3,
        "GROUP_WORLD_SIZE": 5,
    }
    for name, value in variables.items():
        monkeypatch.setenv(name, str(value))
    assert loader.steps(0).share.rank == 3 and len(loader) == 2


def test_too_many_ranks_are_refused_on_every_rank(packed: Manifest) -> None:
    for rank in (0, 30):
        with pytest.raises(UsageError, match="no complete batch: 31 ranks"):
            iter(loader_of(packed, 2, rank, 31))


def test_numbers_out_of_range_are_refused(packed: Manifest) -> None:
    for options in ({"prefetch": 0}, {"num_workers": -1}):
        with pytest.raises(UsageError, match="expected at least"):
            loader_of(packed, **options)  # type: ignore[arg-type]


def test_a_batch_that_the_consumer_drops_is_free_for_the_next(packed: Manifest) -> None:
    source = ArrayBatches(PackedSamples(packed, Resize(8)))
    made: list[weakref.ref[np.ndarray[Any, Any]]] = []

    class Watched:
        samples = source.samples

        def work(self, step: Step, key: int) -> Work[Batch]:
            assert not made or made[-1]() is None
            return source.work(step, key)

    for batch in Loader(Watched(), 4, rank_and_size=lambda: (0, 1), num_workers=0):
        made.append(weakref.ref(batch["image"]))
        del batch
    assert len(made) > 3
