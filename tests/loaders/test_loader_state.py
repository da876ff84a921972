"""States of a loader: an epoch that continues where it stopped, with other ranks, batches and threads."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlio.dataset.manifest import Manifest
from dlio.errors import UsageError
from dlio.images import Resize
from dlio.loaders.batch_sources import ArrayBatches
from dlio.loaders.dataset import PackedSamples
from dlio.loaders.loader import Loader
from dlio.loaders.sampling.order import Shuffle, Window
from dlio.loaders.sampling.rank_share import End
from tests.helpers.rounds import ROUNDS
from tests.loaders.photos import NUM_PHOTOS, loader_of, numbers


@settings(max_examples=12 * ROUNDS)
@given(stop=st.integers(0, 30), data=st.data(), shuffle=st.sampled_from([False, True, Window(2)]))
def test_a_stopped_run_goes_on_with_other_ranks_batches_threads(
    packed: Manifest, stop: int, data: st.DataObject, shuffle: Shuffle
) -> None:
    stopped = loader_of(packed, 2, shuffle=shuffle, end=End.PAD, num_workers=2)
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
    assert sorted(seen + rest) == sorted(2 * [*range(NUM_PHOTOS)])


def test_the_epoch_is_the_running_one_else_the_next(packed: Manifest) -> None:
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
        ({"version": 99}, "not a state of this version"),
        ({"more": 1}, "not a state of this version"),
    ],
)
def test_a_state_of_something_else_is_refused(packed: Manifest, change: dict[str, object], message: str) -> None:
    loader = loader_of(packed)
    with pytest.raises(UsageError, match=message):
        loader.load_state_dict(loader.state_dict() | change)
    loader.load_state_dict({})
    assert loader_of(packed, shuffle=True).state_dict()["order"] != loader.state_dict()["order"]


def test_loaders_pickle_between_iterations(packed: Manifest) -> None:
    loader = Loader(ArrayBatches(PackedSamples(packed, Resize(16))), 4, shuffle=True)
    next(iter(loader))
    copy = pickle.loads(pickle.dumps(loader))
    assert copy.state_dict() == loader.state_dict()
    assert numbers(copy) == numbers(loader)
    for each in (loader, copy):
        each.close()
