"""DenseNet on ChestX-ray14 by torchrun on two ranks, and its area under the ROC curve against scipy's U."""

from __future__ import annotations

import re
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import given

from dlio.pack.sources.chestxray14 import FINDINGS
from tests.examples import shell
from tests.examples.observe import NUM_TEST, NUM_TRAIN
from tests.helpers.lazy import Lazy

torch = Lazy("torch")
scipy_stats = Lazy("scipy.stats")
script = Lazy("tools.examples.chestxray14")

SCRIPT = "chestxray14.py"
BATCH_SIZE, EPOCHS = 4, 3
SMALL = f"--size 32 --growth 4 --depths 1 2 --batch-size {BATCH_SIZE} --epochs {EPOCHS} --workers 1"


@pytest.mark.jobs
@pytest.mark.timeout(600)
def test_two_ranks_train_and_tell_the_area_of_each_finding(chestxray14: Path) -> None:
    training = shell.prepare(SCRIPT, chestxray14).replace("--nproc-per-node 4", "--nproc-per-node 2")
    notes = chestxray14 / "notes"
    notes.mkdir()
    (output,) = shell.run([f"{training} {SMALL}"], chestxray14, [{"OBSERVED": str(notes)}])
    ranks = shell.observed(notes)
    assert len(ranks) == 2
    _check_steps(shell.steps(ranks, "train"), shell.steps(ranks, "test"))
    assert len(shell.losses(output)) == EPOCHS
    areas = dict(re.findall(r"^(\w+) +(nan|0\.\d{4}|1\.0000)$", output, re.MULTILINE))
    assert tuple(areas) == FINDINGS
    assert {name for name, area in areas.items() if area != "nan"} == {"Mass"}, "the only finding of the test images"
    assert f"{NUM_TEST} images:" in output and "mean area" in output and "the trainer waited" in output
    assert (chestxray14 / "chestxray14.pt").exists()


def _check_steps(train: list[list[int]], test: list[list[int]]) -> None:
    """Every epoch trains on whole batches of different images, and tests on every test image once."""
    per_epoch = (NUM_TRAIN - NUM_TEST) // (2 * BATCH_SIZE)
    assert len(train) == EPOCHS * per_epoch
    for epoch in range(EPOCHS):
        images = shell.images(train[epoch * per_epoch : (epoch + 1) * per_epoch])
        assert len(set(images)) == len(images) == per_epoch * 2 * BATCH_SIZE
        assert set(images) <= set(range(NUM_TEST, NUM_TRAIN)), "the split is the lists'"
    assert sorted(shell.images(test)) == sorted(list(range(NUM_TEST)) * EPOCHS)


def test_the_network_is_densenet121() -> None:
    """It has as many parameters as torchvision's."""
    network = script.densenet(1000, 32, [6, 12, 24, 16])
    assert sum(parameter.numel() for parameter in network.parameters()) == 7_978_856


@given(st.lists(st.tuples(st.integers(-3, 3), st.booleans()), min_size=2, max_size=40))
def test_the_area_is_scipys_u_over_the_number_of_pairs(drawn: list[tuple[int, bool]]) -> None:
    logits, truth = [score / 2 for score, _ in drawn], [found for _, found in drawn]
    columns = torch.tensor([logits, logits[::-1]]).T, torch.tensor([truth, truth[::-1]]).T.float()
    areas = script.area_under_roc(*columns)
    having = [score for score, found in zip(logits, truth, strict=True) if found]
    lacking = [score for score, found in zip(logits, truth, strict=True) if not found]
    if not having or not lacking:
        assert areas.isnan().all()
    else:
        expected = scipy_stats.mannwhitneyu(having, lacking).statistic / (len(having) * len(lacking))
        assert areas.tolist() == pytest.approx([expected, expected])
