"""Loader: batches of every rank, threads that leave nothing behind, errors where they belong, states to go on from."""

from __future__ import annotations

import os
import pickle
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dlio.errors import CorruptRecordError, LauncherError, UsageError
from dlio.images import RandomResizedCrop, Resize
from dlio.loaders.dataset import PackedSamples
from dlio.loaders.loader import Loader
from dlio.loaders.order import Shuffle, Window
from dlio.loaders.share import End
from dlio.loaders.sources import ArrayBatches
from dlio.manifest import Manifest
from dlio.sample import Sample, Schema
from tests.loaders.packing import damage, pack_samples

NUM_PHOTOS = 41


def loader_of(
    packed: Manifest, batch_size: int = 4, rank: int = 0, world_size: int = 1, num_threads: int = 2, **options: object
) -> Loader:
    samples = PackedSamples(packed, Resize(16))
    source = ArrayBatches(samples, mask=options.get("end") is End.MASK)
    return Loader(source, batch_size, place=lambda: (rank, world_size), num_threads=num_threads, **options)  # type: ignore[arg-type]


def numbers(batches: object) -> list[int]:
    """Returns which photo each image was made of."""
    return [int(number) for batch in batches for number in batch["image"][:, 0, 0, 0]]  # type: ignore[attr-defined]


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


def test_a_field_that_is_called_as_the_mask_is_not_hidden_by_it(tmp_path: Path) -> None:
    samples = [Sample(str(i), {"valid": i}) for i in range(6)]
    packed = PackedSamples(pack_samples(tmp_path, Schema.of({"valid": "int64"}), samples, num_shards=1))
    with pytest.raises(UsageError, match="has a field 'valid'"):
        ArrayBatches(packed, mask=True)
    loader = Loader(ArrayBatches(packed), 4, end=End.PAD, place=lambda: (0, 1), num_threads=0)
    assert [batch["valid"].tolist() for batch in loader] == [[0, 1, 2, 3], [4, 5]]
    loader.close()


def test_the_order_is_the_same_in_every_format_and_for_any_number_of_threads(packed_anyhow: Manifest) -> None:
    orders = []
    for num_threads in (0, 1, 5):
        loader = loader_of(packed_anyhow, num_threads=num_threads, shuffle=True, seed=3)
        orders.append(numbers(loader))
        loader.close()
    assert orders == [ORDER] * 3


ORDER = [
    39,
    24,
    13,
    16,
    21,
    8,
    11,
    23,
    2,
    10,
    15,
    32,
    28,
    20,
    26,
    40,
    35,
    17,
    30,
    36,
    33,
    9,
    22,
    38,
    34,
    37,
    12,
    25,
    14,
    6,
    1,
    5,
    29,
    18,
    19,
    3,
    4,
    0,
    31,
    7,
]  # never to change: a run resumed after an upgrade goes on in the same order


def test_batches_hold_images_labels_and_whatever_else(packed: Manifest) -> None:
    loader = loader_of(packed, 8)
    batch = next(iter(loader))
    assert list(batch) == ["image", "label"]
    assert batch["image"].shape == (8, 3, 16, 16) and batch["image"].dtype == np.uint8
    assert batch["label"].dtype == np.int64 and batch["label"].tolist() == [0] * 8
    loader.close()


def test_without_a_transform_images_stay_encoded(packed: Manifest, photos: Path) -> None:
    loader = Loader(ArrayBatches(PackedSamples(packed)), 41, place=lambda: (0, 1))
    assert next(iter(loader))["image"] == [path.read_bytes() for path in sorted(photos.glob("*/*.png"))]
    loader.close()


def test_each_epoch_has_its_own_order_and_boxes_and_all_are_reproducible(packed: Manifest) -> None:
    def run() -> list[list[np.ndarray]]:
        samples = PackedSamples(packed, RandomResizedCrop(16, flip=True))
        loader = Loader(ArrayBatches(samples), 41, shuffle=True, seed=5, place=lambda: (0, 1), num_threads=2)
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
            place = (rank, world_size)
            loader = Loader(source, 40 // world_size, place=lambda place=place: place, num_threads=num_threads)  # type: ignore[misc]
            made.append(next(iter(loader))["image"])
            loader.close()
        return np.concatenate(made)

    assert (images(1, 0) == images(4, 3)).all()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30, deadline=None)
@given(stop=st.integers(0, 30), data=st.data(), shuffle=st.sampled_from([False, True, Window(2)]))
def test_a_stopped_run_goes_on_with_other_ranks_batches_threads(
    packed: Manifest, stop: int, data: st.DataObject, shuffle: Shuffle
) -> None:
    before = loader_of(packed, 2, shuffle=shuffle, end=End.PAD, num_threads=1)
    straight = [numbers([batch]) for _ in range(2) for batch in before]
    stopped = loader_of(packed, 2, shuffle=shuffle, end=End.PAD, num_threads=2)
    seen: list[int] = []
    batches = (batch for _ in range(2) for batch in stopped)
    for _, batch in zip(range(stop), batches, strict=False):
        seen += numbers([batch])
    state = pickle.loads(pickle.dumps(stopped.state_dict()))
    stopped.close()
    assert len(state) == 5 and all(isinstance(value, int | str) for value in state.values())
    world_size, batch_size = data.draw(st.sampled_from([(1, 2), (1, 5), (2, 1), (4, 3)]))
    rest: list[int] = []
    loaders = [
        loader_of(packed, batch_size, rank, world_size, shuffle=shuffle, end=End.MASK) for rank in range(world_size)
    ]
    for loader in loaders:
        loader.load_state_dict(state)
        batches = [batch for _ in range(2 - state["epoch"]) for batch in loader]
        valid = np.concatenate([batch["valid"] for batch in batches]) if batches else []
        rest += [n for n, ok in zip(numbers(batches), valid, strict=True) if ok]
        loader.close()
    expected = [n for batch in straight for n in batch]
    assert sorted(seen + rest) == sorted(expected)
    before.close()


def test_the_epoch_is_that_of_the_iteration_under_way_else_the_next(packed: Manifest) -> None:
    loader = loader_of(packed)
    assert loader.epoch == 0
    assert [loader.epoch for _ in loader] == [0] * 10
    assert loader.epoch == 1
    for _ in loader:
        state = loader.state_dict()
        assert loader.epoch == 1
        break
    assert loader.epoch == 2
    resumed = loader_of(packed)
    resumed.load_state_dict(state)
    assert resumed.epoch == 1 and len(resumed) == 10  # of the whole epoch, as in torchdata's StatefulDataLoader
    batches = iter(resumed)
    assert resumed.epoch == 1 and len(list(batches)) == 9 and resumed.epoch == 2
    for each in (loader, resumed):
        each.close()


def test_a_state_survives_set_epoch_of_the_same_epoch(packed: Manifest) -> None:
    loader = loader_of(packed, shuffle=True)
    list(loader)
    batches = iter(loader)
    next(batches)
    state = loader.state_dict()
    rest = numbers(batches)
    resumed = loader_of(packed, shuffle=True)
    resumed.load_state_dict(state)
    resumed.set_epoch(1)
    assert numbers(resumed) == rest
    resumed.set_epoch(1)
    assert numbers(resumed)[4:] == rest
    for each in (loader, resumed):
        each.close()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"order": "0" * 32}, "another data set"),
        ({"seed": 1}, "seed=1"),
        ({"version": 99}, "no state of this version"),
        ({"more": 1}, "no state of this version"),
    ],
)
def test_a_state_of_something_else_is_refused(packed: Manifest, change: dict[str, object], message: str) -> None:
    loader = loader_of(packed)
    with pytest.raises(UsageError, match=message):
        loader.load_state_dict(loader.state_dict() | change)
    loader.load_state_dict({})
    assert loader_of(packed, shuffle=True).state_dict()["order"] != loader.state_dict()["order"]


def test_the_place_is_told_by_the_launcher(packed: Manifest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DLIO_LAUNCHER", "torchrun")
    loader = Loader(ArrayBatches(PackedSamples(packed, Resize(8))), 4)
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


def test_a_world_that_leaves_a_rank_without_samples_is_refused_on_all(packed: Manifest) -> None:
    for rank in (0, 30):
        with pytest.raises(UsageError, match="no whole batch: 31 ranks"):
            iter(loader_of(packed, 2, rank, 31))


def test_damage_is_raised_in_the_consumer_where_its_batch_is_reached(packed: Manifest, tmp_path: Path) -> None:
    shutil.copytree(packed.root, tmp_path / "copy")
    copy = Manifest.load(tmp_path / "copy")
    damage(copy, record=2, shard=5)
    loader = loader_of(copy, 4)
    batches = iter(loader)
    good = numbers(batch for batch, _ in zip(batches, range(6), strict=False))
    assert good == list(range(24))
    with pytest.raises(CorruptRecordError, match=r"shard-0*5\D.*record \d+, offset \d+") as caught:
        list(batches)
    assert caught.value.record is not None
    assert not [t.name for t in threading.enumerate() if t.name.startswith("dlio")]
    loader.close()


def leave_by_break(loader: Loader) -> None:
    for _ in loader:
        break


def leave_by_error(loader: Loader) -> None:
    with pytest.raises(RuntimeError, match="stop"):
        for _ in loader:
            raise RuntimeError("stop")


def leave_by_close(loader: Loader) -> None:
    batches = iter(loader)
    next(batches)
    loader.close()
    assert list(batches) == []


def never_start(loader: Loader) -> None:
    iter(loader)


@pytest.mark.parametrize("leave", [leave_by_break, leave_by_error, leave_by_close, never_start])
def test_a_consumer_that_stops_early_leaves_nothing_running(packed: Manifest, leave: Callable[[Loader], None]) -> None:
    loader = loader_of(packed)
    leave(loader)
    assert not [t.name for t in threading.enumerate() if t.name.startswith("dlio")]
    loader.close()
    assert len(list(loader)) == 10  # it can be used again
    loader.close()


def test_loaders_pickle_between_iterations(packed: Manifest) -> None:
    loader = Loader(ArrayBatches(PackedSamples(packed, Resize(16))), 4, shuffle=True)
    next(iter(loader))
    copy = pickle.loads(pickle.dumps(loader))
    assert copy.state_dict() == loader.state_dict()
    assert numbers(copy) == numbers(loader)
    for each in (loader, copy):
        each.close()


def test_a_forked_child_iterates_on_its_own(packed: Manifest) -> None:
    loader = loader_of(packed)
    batches = iter(loader)
    next(batches)
    child = os.fork()
    if child == 0:
        os._exit(0 if len(numbers(loader)) == 40 else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert len(numbers(batches)) == 36
    loader.close()


def test_an_iteration_that_began_before_a_fork_ends_in_the_child_with_a_reason(packed: Manifest) -> None:
    loader = loader_of(packed, num_threads=2)
    batches = iter(loader)
    next(batches)
    child = os.fork()
    if child == 0:
        try:
            next(batches)
        except UsageError as error:
            os._exit(0 if "iterate over the loader anew" in str(error) and next(batches, None) is None else 2)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    assert len(numbers(batches)) == 36
    loader.close()


@pytest.mark.parametrize("prefetch", [1, 2, 7])
def test_memory_of_a_batch_is_used_again_once_it_is_let_go_of(packed: Manifest, prefetch: int) -> None:
    samples = PackedSamples(packed, Resize(512))  # 8 images take 6 MB
    loader = Loader(ArrayBatches(samples), 8, place=lambda: (0, 1), num_threads=2, prefetch=prefetch)
    held = [batch["image"] for batch in loader]
    first = [image.copy() for image in held]
    for batch in loader:
        assert not any(np.shares_memory(batch["image"], image) for image in held)
    assert all((now == before).all() for now, before in zip(held, first, strict=True))
    del held, batch
    places = {batch["image"].ctypes.data for _ in range(3) for batch in loader}
    assert len(places) <= prefetch + 2 and places <= {piece.ctypes.data for piece in samples.memory._kept}
    loader.close()


def test_numbers_out_of_range_are_refused(packed: Manifest) -> None:
    for options in ({"prefetch": 0}, {"num_threads": -1}):
        with pytest.raises(UsageError, match="expected at least"):
            loader_of(packed, **options)  # type: ignore[arg-type]
