"""Lightning continues with the step in which it was stopped, and validates at the end of that epoch."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from dlio.dataset.manifest import Manifest
from tests.helpers.lazy import Lazy

runs = Lazy("tests.loaders.torch.lightning_runs")

STEPS = 10
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.jobs]


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    yield


@pytest.mark.parametrize("stop", [3, STEPS - 1, STEPS + 4])
def test_a_run_that_an_exception_ended_goes_on_with_its_step(packed: Manifest, tmp_path: Path, stop: int) -> None:
    whole = runs.fit(packed, runs.Model())
    stopped = runs.Model(stop)
    with pytest.raises(RuntimeError, match="stopped"):
        runs.fit(packed, stopped, None, runs.OnExceptionCheckpoint(tmp_path, filename="last"))
    resumed = runs.fit(packed, runs.Model(), tmp_path / "last.ckpt")
    assert stopped.trained + resumed.trained == whole.trained
    ends = [(epoch, end - stop) for epoch, end in whole.validated if end > stop]
    assert resumed.validated == ends != []


def test_a_run_that_was_saved_between_steps_validates_as_well(packed: Manifest, tmp_path: Path) -> None:
    keep = runs.ModelCheckpoint(tmp_path, filename="{step}", every_n_train_steps=7, save_top_k=-1)
    whole = runs.fit(packed, runs.Model(), None, keep)
    resumed = runs.fit(packed, runs.Model(), tmp_path / "step=7.ckpt")
    assert resumed.trained == whole.trained[7:]
    assert resumed.validated == [(0, STEPS - 7), (1, 2 * STEPS - 7)]
