"""Keyed random numbers: bijections of any range, even distribution, values fixed forever."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare, kstest

from dlio import native
from dlio.random_keys import derive, derive_each, permute, uniform


@given(size=st.integers(0, 3000), key=st.integers(0, 2**64 - 1))
def test_permute_reaches_every_place_once(size: int, key: int) -> None:
    assert sorted(permute(np.arange(size), size, key).tolist()) == list(range(size))


@given(size=st.integers(1, 2**62), key=st.integers(0, 2**64 - 1), data=st.data())
def test_permute_stays_in_range_whatever_else_is_asked(size: int, key: int, data: st.DataObject) -> None:
    positions = np.array(data.draw(st.lists(st.integers(0, size - 1), min_size=1, max_size=20)))
    places = permute(positions, size, key)
    assert ((places >= 0) & (places < size)).all()
    assert places.tolist() == [int(permute(positions[i : i + 1], size, key)[0]) for i in range(len(positions))]


@pytest.mark.skipif(not native.available, reason="needs the compiled core")
@pytest.mark.parametrize("size", [2, 3, 1000, 2**33, 2**62])
def test_the_core_permutes_as_python_does(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    positions = np.random.default_rng(size).integers(0, size, (20, 5))
    places = permute(positions, size, 5)
    monkeypatch.setattr(native, "available", False)
    assert (places == permute(positions, size, 5)).all()


@pytest.mark.skipif(not native.available, reason="needs the compiled core")
def test_positions_beyond_the_size_are_refused_by_the_core() -> None:
    for wrong in ([2], [-1]):
        with pytest.raises(ValueError, match="expected 0 to size"):
            native.permute(np.array(wrong), 2, np.zeros(8, np.uint64))
    with pytest.raises(ValueError, match="8 keys"):
        native.permute(np.array([0]), 2, np.zeros(7, np.uint64))


@pytest.mark.parametrize("size", [2, 3, 5, 8, 13, 40])
def test_every_sample_is_as_likely_in_every_place(size: int) -> None:
    counts = np.zeros((size, size))
    for key in range(4000):
        counts[np.arange(size), permute(np.arange(size), size, derive(7, key))] += 1
    p_values = [chisquare(row).pvalue for row in counts]
    assert min(p_values) > 1e-4 / size


@pytest.mark.parametrize("size", [4, 6, 10])
def test_neighbours_are_parted_as_by_chance(size: int) -> None:
    counts = np.zeros(size)
    for key in range(6000):
        places = permute(np.arange(size), size, derive(11, key))
        counts[(places[1] - places[0]) % size] += 1
    assert counts[0] == 0
    assert chisquare(counts[1:]).pvalue > 1e-4


def test_uniform_numbers_are_uniform_and_independent_of_each_other() -> None:
    numbers = uniform(derive_each(3, np.arange(20_000)), 3)
    assert numbers.shape == (20_000, 3) and numbers.dtype == np.float64
    for column in numbers.T:
        assert kstest(column, "uniform").pvalue > 1e-4
    assert np.abs(np.corrcoef(numbers.T) - np.eye(3)).max() < 0.03


def test_keys_depend_on_every_part_and_their_order() -> None:
    keys = {derive(*parts) for parts in [(), (0,), (1,), (0, 0), (0, 1), (1, 0), (0, 0, 0), (-1,), (2**64,)]}
    assert len(keys) == 8  # 2**64 counts as 0
    assert len(set(derive_each(5, np.arange(10_000)).tolist())) == 10_000


def test_the_functions_never_change() -> None:
    """A run resumed after an upgrade continues in the same order."""
    assert derive(1, 2, 3) == DERIVED
    assert permute(np.arange(10), 10, 42).tolist() == PERMUTED
    assert uniform(derive_each(9, [1]), 2).tolist() == UNIFORM


DERIVED = 15020427595393229491
PERMUTED = [9, 4, 2, 3, 6, 1, 7, 5, 8, 0]
UNIFORM = [[0.6336157205615396, 0.46492582560740736]]
