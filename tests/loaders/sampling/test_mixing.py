"""The mixing score: its bounds, and its agreement with batches of the real order."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlio.dataset.manifest import Manifest, Shard
from dlio.dataset.schema import IMAGE_CLASSIFICATION
from dlio.loaders.sampling.mixing import mixing_score
from dlio.loaders.sampling.order import Window, epoch_order

tables = st.lists(st.lists(st.integers(0, 40), min_size=3, max_size=3), min_size=1, max_size=12).filter(
    lambda rows: np.sum(rows) > 1
)


def counts_of(rows: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
    counts = np.array(rows, dtype=np.int64)
    return counts, counts.sum(axis=1)


@given(rows=tables, batch_size=st.integers(1, 600))
def test_grows_with_the_window_up_to_one(rows, batch_size):
    counts, sizes = counts_of(rows)
    scores = [mixing_score(Window(w), batch_size, sizes, counts) for w in range(1, len(sizes) + 1)]
    assert all(0 < score <= 1 for score in scores)
    assert all(small <= large + 1e-9 for small, large in itertools.pairwise(scores))
    assert scores[-1] == 1


@given(rows=tables, window=st.integers(1, 12), batch_size=st.integers(1, 600))
def test_single_class_shards_score_least_in_any_order(rows, window, batch_size):
    counts, sizes = counts_of(rows)
    score = mixing_score(Window(window), batch_size, sizes, counts)
    assert score >= mixing_score(Window(window), batch_size, sizes) - 1e-9
    assert score == pytest.approx(mixing_score(Window(window), batch_size, sizes[::-1], counts[::-1]))


@given(st.integers(2, 20), st.integers(1, 50), st.integers(1, 600))
def test_shards_with_equal_shares_of_each_class_mix_exactly(num_shards, size, batch_size):
    counts = np.full((num_shards, 4), size)
    assert mixing_score(Window(1), batch_size, counts.sum(axis=1), counts) == 1


def test_one_class_a_shard_scores_as_the_worst_case():
    sizes = np.full(10, 50)
    assert mixing_score(Window(2), 32, sizes, np.diag(sizes)) == pytest.approx(mixing_score(Window(2), 32, sizes))


@pytest.mark.parametrize(("window", "batch_size", "sorted_share"), [(1, 8, 1), (3, 12, 0.5), (3, 96, 1), (6, 24, 0.7)])
def test_is_the_ratio_of_the_variances_of_batches(window, batch_size, sorted_share):
    """Compares the class shares in the batches of many epochs, drawn by the real orders, with exact random samples."""
    num_shards, size = 12, 16
    random = np.random.default_rng(0)
    labels = np.repeat(np.arange(4), num_shards * size // 4)
    moved = random.random(len(labels)) >= sorted_share
    labels[moved] = random.permutation(labels[moved])
    counts = np.array([np.bincount(shard, minlength=4) for shard in labels.reshape(num_shards, size)])
    exact = 0.75 / batch_size * (len(labels) - batch_size) / (len(labels) - 1)
    measured = variance(labels, num_shards, Window(window), batch_size)
    score = mixing_score(Window(window), batch_size, np.full(num_shards, size), counts)
    assert score == pytest.approx(exact / measured, rel=0.2)


def variance(labels: np.ndarray, num_shards: int, shuffle: Window, batch_size: int) -> float:
    """Returns the mean squared distance of the class shares of batches from those of the whole, over many epochs."""
    shards = tuple(Shard(f"{number}", len(labels) // num_shards, ()) for number in range(num_shards))
    manifest = Manifest("recordio", IMAGE_CLASSIFICATION, shards, {}, Path())
    positions = np.arange(len(labels))
    orders = [epoch_order(manifest, seed=3, epoch=epoch, shuffle=shuffle).lane(0) for epoch in range(200)]
    batches = labels[np.array([order.indices(positions) for order in orders])].reshape(-1, batch_size)
    shares = (batches[:, :, None] == np.arange(4)).mean(axis=1)
    return float(np.square(shares - np.bincount(labels) / len(labels)).sum(axis=1).mean())
