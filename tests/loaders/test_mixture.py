"""Mixture: weights are kept in every batch, each sample is used equally often, and any topology resumes any other's."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from dlio.dataset.manifest import File, Manifest, Shard
from dlio.dataset.schema import IMAGE_CLASSIFICATION, Sample, Schema
from dlio.errors import UsageError
from dlio.io.files import digest_bytes
from dlio.loaders.dataset import PackedSamples
from dlio.loaders.loader import ArrayBatches, Loader
from dlio.loaders.mixture import Mixture
from dlio.loaders.sampling.mixed_order import draws_of, mixed_order
from dlio.loaders.sampling.order import Window, epoch_order
from dlio.loaders.sampling.rank_share import Share, rank_steps
from tests.loaders.packing import pack_samples


def manifest_of(counts: list[int]) -> Manifest:
    shards = (Shard(f"s{n}", count, (File(f"s{n}", count, ""),)) for n, count in enumerate(counts))
    return Manifest("tfrecord", IMAGE_CLASSIFICATION, tuple(shards))


def numbers(order, share: Share) -> list[int]:
    return [int(number) for step in rank_steps(order, share) for number in step.indices]


def halves(counts: list[int]) -> list[int]:
    return epoch_order(manifest_of(counts), lanes=2).lane_sizes.tolist()


def test_lanes_that_would_be_used_unequally_are_refused():
    with pytest.raises(UsageError, match=r"2 lanes of \. have 3 to 8 samples"):
        mixed_order([manifest_of([5, 6]), manifest_of([3, 8])], (1, 1), 8, seed=0, epoch=0, shuffle=True, lanes=2)


@settings(max_examples=40)
@given(
    st.lists(st.lists(st.integers(2, 9), min_size=2, max_size=4), min_size=1, max_size=3),
    st.integers(8, 60),
    st.sampled_from([False, True, Window(2)]),
    st.integers(1, 2),
)
def test_each_sample_is_used_equally_often_in_the_shares_of_the_weights(counts, size, shuffle, lanes):
    manifests, weights = [manifest_of(each) for each in counts], [3.0, 1.0, 2.0][: len(counts)]
    options = {"seed": 1, "shuffle": shuffle, "lanes": lanes}
    assume(lanes == 1 or all(2 * min(halves(each)) >= max(halves(each)) for each in counts))
    orders = [mixed_order(manifests, draws_of(weights), size, epoch=epoch, **options) for epoch in range(6)]
    used = np.concatenate(
        [o.lane(lane).indices(np.arange(o.lane_sizes[lane])) for o in orders for lane in range(lanes)]
    )
    assert len(used) == 6 * size
    ends = np.cumsum([each.num_samples for each in manifests])
    for part, share in enumerate(np.array(weights) / sum(weights)):
        times = np.bincount(
            used[np.searchsorted(ends, used, "right") == part] - (ends[part] - manifests[part].num_samples)
        )
        assert abs(times.sum() - share * len(used)) <= 1.01 * lanes * len(counts)
        if lanes == 1 and len(used) * share > manifests[part].num_samples + 2:
            assert times.max() - times.min() <= 1


@pytest.mark.parametrize("shuffle", [False, True, Window(2)])
def test_the_order_is_the_same_for_any_number_of_ranks(shuffle):
    manifests = [manifest_of([30, 41]), manifest_of([7, 5])]
    order = mixed_order(manifests, draws_of([0.7, 0.3]), 64, seed=3, epoch=2, shuffle=shuffle, lanes=1)
    whole = numbers(order, Share(0, 1, 16))
    ranks = [numbers(order, Share(rank, 4, 4)) for rank in range(4)]
    assert [number for step in range(4) for rank in ranks for number in rank[4 * step : 4 * step + 4]] == whole
    shares = [sum(number >= 71 for number in whole[at : at + 16]) for at in range(0, 64, 16)]
    assert min(shares) >= 4 and max(shares) <= 6


@pytest.fixture
def mixture(tmp_path) -> Mixture:
    schema = Schema.of({"label": "int64"})
    for name, first, count in (("a", 0, 30), ("b", 100, 7)):
        rows = [Sample(str(number), {"label": number}) for number in range(first, first + count)]
        pack_samples(tmp_path / name, schema, rows, num_shards=3)
    return Mixture([(tmp_path / "a", 2), (tmp_path / "b", 1)])


def loader(mixture: Mixture, batch_size: int, rank: int = 0, ranks: int = 1) -> Loader:
    source = ArrayBatches(PackedSamples(mixture))
    return Loader(source, batch_size, shuffle=True, seed=5, end="drop", num_workers=0, rank=rank, world_size=ranks)


def labels(batches) -> list[int]:
    return [int(label) for batch in batches for label in batch["label"]]


def test_a_mixture_resumes_with_other_ranks(mixture):
    one = loader(mixture, 12)
    whole = labels(one)
    assert len(whole) == 36 and sum(label >= 100 for label in whole) == 12
    run = loader(mixture, 12)
    begun = iter(run)
    first = labels([next(begun)])
    state = run.state_dict()
    assert all(type(value) in (int, str) for value in state.values())
    rest = []
    for rank in range(2):
        resumed = loader(mixture, 6, rank, 2)
        resumed.load_state_dict(state)
        rest.append(labels(resumed))
        resumed.close()
    assert [*first, *(x for at in (0, 6) for rank in rest for x in rank[at : at + 6])] == whole
    other = loader(Mixture(mixture.parts, epoch_samples=24), 12)
    with pytest.raises(UsageError, match="belongs to another data set"):
        other.load_state_dict(state)
    assert len(other) == 2
    with pytest.raises(UsageError, match="ends after 2"):
        other.steps(2**62)
    for each in (one, run, other):
        each.close()


@pytest.mark.parametrize("weights", [[], [0.5, 0], [1, -1], [1, float("nan")], [1, 1e-9], [float("inf"), 1]])
def test_impossible_weights_are_refused(weights):
    with pytest.raises(UsageError, match="weight"):
        Mixture([("a", weight) for weight in weights])


@pytest.mark.parametrize("parts", ["packed", ["packed"], [("packed", 1.0, 2)]])
def test_parts_without_weights_are_named(parts: list[tuple[str, float]]) -> None:
    with pytest.raises(UsageError, match=r"'packed'.*expected pairs of a data set and its weight"):
        Mixture(parts)


def test_an_order_is_the_same_in_every_version():
    """A run resumed after an upgrade continues in its order; the last epoch uses each set for the third time."""
    manifests, draws = [manifest_of([5, 6, 4]), manifest_of([3, 2, 4]), manifest_of([5, 6, 4])], draws_of([3, 1, 2])
    orders = [mixed_order(manifests, draws, 25, seed=3, epoch=n, shuffle=True, lanes=2) for n in (0, 1, 4)]
    found = [
        order.lane(lane).indices(np.arange(order.lane_sizes[lane])).tolist() for order in orders for lane in (0, 1)
    ]
    assert digest_bytes(str(found).encode()).partition(":")[2][:16] == "e6273c95d19ccb0f"
