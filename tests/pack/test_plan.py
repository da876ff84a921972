"""The plan of shards: every sample once, shards of about equal size, the same for the same arguments."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlio.errors import UsageError
from dlio.pack.plan import plan_shards, shard_name, shard_number

SIZES = st.lists(st.integers(0, 1 << 40), min_size=1, max_size=200).map(lambda sizes: np.array(sizes, dtype="int64"))
SEEDS = st.none() | st.integers(0, 2**63)


@given(SIZES, st.integers(1, 1 << 42), SEEDS)
def test_every_sample_is_in_one_shard_and_none_is_empty(sizes, shard_bytes, seed):
    shards = plan_shards(sizes, shard_bytes=shard_bytes, seed=seed)
    assert sorted(np.concatenate([shard.indices for shard in shards]).tolist()) == list(range(len(sizes)))
    assert all(len(shard.indices) for shard in shards)
    assert [shard.num_bytes for shard in shards] == [int(sizes[shard.indices].sum()) for shard in shards]


@given(SIZES, SEEDS, st.data())
def test_the_number_of_shards_is_the_one_asked_for(sizes, seed, data):
    count = data.draw(st.integers(1, len(sizes)))
    shards = plan_shards(sizes, num_shards=count, seed=seed)
    assert [shard.name for shard in shards] == [f"shard-{number:06d}" for number in range(count)]


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=300), st.integers(1, 5000), SEEDS)
def test_shards_are_balanced_up_to_the_largest_sample(sizes, shard_bytes, seed):
    sizes = np.array(sizes, dtype="int64")
    shards = plan_shards(sizes, shard_bytes=shard_bytes, seed=seed)
    mean = sizes.sum() / len(shards)
    # each cut is at most one sample past its place, plus what "no shard empty" pushes on where samples are few
    slack = 2 * sizes.max() if shard_bytes >= 2 * sizes.max() else len(sizes) * sizes.max()
    assert max(shard.num_bytes for shard in shards) <= mean + slack
    assert len(shards) == min(len(sizes), -(-int(sizes.sum()) // shard_bytes))


@given(SIZES, SEEDS)
def test_the_same_arguments_give_the_same_plan(sizes, seed):
    one, two = (plan_shards(sizes, shard_bytes=1 << 20, seed=seed) for _ in range(2))
    assert [(a.name, list(a.indices)) for a in one] == [(b.name, list(b.indices)) for b in two]


@given(SIZES)
def test_without_a_seed_the_order_is_kept(sizes):
    shards = plan_shards(sizes, shard_bytes=1 << 30)
    assert np.concatenate([shard.indices for shard in shards]).tolist() == list(range(len(sizes)))


def test_a_seed_shuffles_and_seeds_differ():
    orders = [list(plan_shards(np.ones(100, "int64"), num_shards=1, seed=seed)[0].indices) for seed in (None, 0, 1)]
    assert orders[0] == list(range(100))
    assert orders[1] != orders[0] != orders[2] != orders[1]


def test_a_shuffle_never_changes_between_releases():
    assert plan_shards(np.ones(8, "int64"), num_shards=1, seed=7)[0].indices.tolist() == [6, 3, 4, 0, 2, 7, 5, 1]


def test_sizes_of_nothing_are_planned_too():
    assert len(plan_shards(np.zeros(5, "int64"), shard_bytes=10)) == 1
    assert [len(s.indices) for s in plan_shards(np.zeros(5, "int64"), num_shards=3)] == [1, 1, 3]


@pytest.mark.parametrize("arguments", [{"num_shards": 4}, {"num_shards": 0}, {"shard_bytes": 0}, {"shard_bytes": -1}])
def test_what_cannot_be_is_refused(arguments):
    with pytest.raises(UsageError):
        plan_shards(np.ones(3, "int64"), **arguments)


@pytest.mark.parametrize("wrong", [{"shard_bytes": "1MiB"}, {"num_shards": 2.5}, {"num_shards": 0}])
def test_sizes_and_numbers_that_are_none_are_refused(wrong):
    with pytest.raises(UsageError, match=rf"whole number >= 1, found {next(iter(wrong.values()))!r}"):
        plan_shards(np.array([1, 2, 3]), **wrong)


@pytest.mark.parametrize("number", [0, 12, 999_999, 1_000_000])
def test_shards_are_known_by_their_files_names(number):
    assert shard_number(f"{shard_name(number)}.tar") == number


@pytest.mark.parametrize("name", ["shard-1.tar", "shard-000001", "shard-.tar", "shard--00001.x", "other-000001.tar"])
def test_other_names_are_no_shards(name):
    assert shard_number(name) is None
