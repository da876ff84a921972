"""Lightning over a packed data set: two ranks that it starts itself, with dlio's DataLoader and with torch's own."""

from __future__ import annotations

from typing import Any

import pytest

from dlio.dataset.manifest import Manifest
from tests.loaders.ranks import photos_of, run_job

ALL = list(range(41))
EPOCHS = ("0", "1")


pytestmark = pytest.mark.jobs


@pytest.fixture(scope="module")
def ranks(packed: Manifest, tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """What each of two ranks reports."""
    return run_job("lightning_job", packed.root, tmp_path_factory.mktemp("lightning"), [{}])


@pytest.mark.parametrize("case", ["ours", "theirs", "sampled", "hook"])
def test_every_photo_is_seen_in_every_epoch(ranks: list[Any], case: str) -> None:
    epochs = [[rank[case]["seen"][epoch] for rank in ranks] for epoch in EPOCHS]
    for epoch in epochs:
        seen = photos_of(epoch)
        assert len(seen) == len(ALL) + 1 and sorted(set(seen)) == ALL, "one repeated where ranks would differ"
    assert epochs[0] != epochs[1]


def test_dlios_order_is_kept_and_another_is_sharded(ranks: list[Any]) -> None:
    cases = ("ours", "theirs", "sampled", "hook")
    made = {case: (ranks[0][case]["loader"], ranks[0][case]["sampler"]) for case in cases}
    assert made["ours"] == ("dlio.loaders.torch.loader", "RankSampler")
    assert made["theirs"] == ("torch.utils.data.dataloader", "DistributedSampler")
    assert made["sampled"] == made["hook"] == ("dlio.loaders.torch.loader", "DistributedSampler")


def test_a_checkpoint_within_an_epoch_resumes_at_the_same_sample(ranks: list[Any]) -> None:
    for rank in ranks:
        assert rank["resumed"]["seen"] == {"1": rank["ours"]["seen"]["1"][2:]}


def test_predictions_cover_every_photo_once_with_a_mask(ranks: list[Any]) -> None:
    assert sorted(photo for rank in ranks for batch in rank["predicted"] for photo in batch) == ALL


def test_fabric_trains_as_the_trainer_does(ranks: list[Any]) -> None:
    for rank in ranks:
        assert rank["fabric"] == [rank["ours"]["seen"][epoch] for epoch in EPOCHS]
