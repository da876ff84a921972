"""Accelerate over a packed data set: two ranks, with dlio's DataLoader and with torch's own."""

from __future__ import annotations

from typing import Any

import pytest

from dlio.dataset.manifest import Manifest
from tests.loaders.ranks import photos_of, run_job, torch_ranks

ALL = list(range(41))


pytestmark = pytest.mark.jobs


@pytest.fixture(scope="module")
def ranks(packed: Manifest, tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """What each of two ranks reports."""
    return run_job("accelerate_job", packed.root, tmp_path_factory.mktemp("accelerate"), torch_ranks(2))


@pytest.mark.parametrize("case", ["ours", "theirs", "sampled"])
def test_every_photo_is_seen_in_every_epoch(ranks: list[Any], case: str) -> None:
    for epoch in range(len(ranks[0][case])):
        seen = photos_of([rank[case][epoch]["seen"] for rank in ranks])
        assert len(seen) == len(ALL) + 1 and sorted(set(seen)) == ALL, "one repeated where ranks would differ"
    orders = [epoch["seen"] for epoch in ranks[0][case]]
    assert all(order != orders[0] for order in orders[1:]), "each epoch is shuffled again"


@pytest.mark.parametrize("case", ["ours", "theirs", "sampled"])
def test_metrics_count_every_photo_once(ranks: list[Any], case: str) -> None:
    for rank in ranks:
        assert all(sorted(epoch["gathered"]) == ALL for epoch in rank[case])


@pytest.mark.parametrize("case", ["ours", "theirs"])
def test_the_last_gradients_of_an_epoch_are_applied(ranks: list[Any], case: str) -> None:
    for rank in ranks:
        assert rank[case][0]["applied"] == [False, True, False, True, False, True, True]


def test_a_prepared_loader_puts_its_batches_on_the_device(ranks: list[Any]) -> None:
    for rank in ranks:
        assert rank["untouched"] and rank["device"] == "meta"


def test_skipped_batches_are_the_first_of_the_coming_epoch(ranks: list[Any]) -> None:
    for rank in ranks:
        assert rank["skipped"] == rank["whole"][2:]


def test_a_saved_state_resumes_within_the_epoch(ranks: list[Any]) -> None:
    seen = photos_of([rank["resumed"] for rank in ranks])
    assert len(seen) == len(ALL) + 1 and sorted(set(seen)) == ALL
