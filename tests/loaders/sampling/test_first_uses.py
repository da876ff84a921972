"""The order in which a rank first uses shards."""

from __future__ import annotations

import numpy as np
import pytest

from dlio.loaders.sampling.order import Indices, first_uses


def batches(*numbers: list[int]) -> list[Indices]:
    return [np.array(some) for some in numbers]


OFFSETS = np.array([0, 10, 20, 20, 30])


def test_shards_come_in_the_order_of_their_first_use():
    assert first_uses(batches([25, 1, 26], [2, 11], [3]), OFFSETS) == [3, 0, 1]


def test_it_looks_no_further_than_all_shards_with_samples():
    def coming():
        yield from batches([1, 11, 25])
        for _ in range(1000):
            yield from batches([1])
        pytest.fail("searched everything")

    assert first_uses(coming(), np.array([0, 10, 20, 30])) == [0, 1, 2]


def test_empty_shards_and_epochs_are_nothing_to_wait_for():
    assert first_uses(batches(), OFFSETS) == []
    assert first_uses(batches([0]), np.array([0, 5])) == [0]


@pytest.mark.parametrize("seed", range(5))
def test_it_agrees_with_looking_at_each_sample(seed):
    random = np.random.default_rng(seed)
    numbers = [random.integers(0, 30, 7).tolist() for _ in range(random.integers(0, 9))]
    shards = [int(np.searchsorted(OFFSETS, number, side="right") - 1) for some in numbers for number in some]
    assert first_uses(batches(*numbers), OFFSETS) == list(dict.fromkeys(shards))
