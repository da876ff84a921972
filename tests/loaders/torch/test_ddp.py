"""Two ranks of DistributedDataParallel with dlio's DataLoader."""

from __future__ import annotations

from typing import Any

import pytest

from dlio.dataset.manifest import Manifest
from tests.loaders.ranks import run_job, torch_ranks

ALL = list(range(41))


@pytest.fixture(scope="module")
def ranks(packed: Manifest, tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """What each of two ranks reports."""
    return run_job("ddp_job", packed.root, tmp_path_factory.mktemp("ddp"), torch_ranks(2))


@pytest.mark.parametrize(("case", "count"), [("mask", 41), ("drop", 36), ("lanes", 41)])
def test_ranks_take_equal_steps_and_see_every_sample_once(ranks: list[Any], case: str, count: int) -> None:
    epochs = [[rank[case][epoch] for rank in ranks] for epoch in range(2)]
    for epoch in epochs:
        assert len(epoch[0]) == len(epoch[1])
        seen = [photo for batches in epoch for batch in batches for photo in batch]
        assert len(seen) == len(set(seen)) == count and set(seen) <= set(ALL)
    assert epochs[0] != epochs[1]
