"""The Trainer of transformers over a packed data set: two ranks, with its own DataLoader and with dlio's."""

from __future__ import annotations

from typing import Any

import pytest

from dlio.dataset.manifest import Manifest
from tests.loaders.ranks import photos_of, run_job, torch_ranks

ALL = list(range(41))
STEPS = 7  # of an epoch


@pytest.fixture(scope="module")
def ranks(packed: Manifest, tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """What each of two ranks reports."""
    return run_job("hf_trainer_job", packed.root, tmp_path_factory.mktemp("trainer"), torch_ranks(2))


@pytest.mark.parametrize("case", ["ours", "theirs"])
def test_every_photo_is_seen_in_every_epoch(ranks: list[Any], case: str) -> None:
    epochs = [[rank[case][start : start + STEPS] for rank in ranks] for start in (0, STEPS)]
    for epoch in epochs:
        seen = photos_of(epoch)
        assert len(seen) == len(ALL) + 1 and sorted(set(seen)) == ALL, "one repeated where ranks would differ"
    assert epochs[0] != epochs[1] and all(len(rank[case]) == 2 * STEPS for rank in ranks)


def test_a_checkpoint_within_an_epoch_resumes_at_the_same_sample(ranks: list[Any]) -> None:
    for rank in ranks:
        assert rank["resumed"] == rank["ours"][9:]
