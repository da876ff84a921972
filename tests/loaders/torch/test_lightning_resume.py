"""Lightning continues with the step in which it was stopped, and validates at the end of that epoch."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from dlio.dataset.manifest import Manifest
from dlio.images import Resize
from dlio.loaders.torch import DataLoader, PackedDataset
from tests.loaders.photos import numbers

lightning = pytest.importorskip("lightning", reason="needs lightning: pip install lightning")

from lightning.pytorch.callbacks import ModelCheckpoint, OnExceptionCheckpoint  # noqa: E402  needs lightning
from lightning.pytorch.plugins.environments import LightningEnvironment  # noqa: E402  needs lightning

STEPS = 10
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.jobs]


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    yield


class Model(lightning.LightningModule):  # type: ignore[misc, name-defined]
    """Keeps what it trained on, and when it validated; raises in one step."""

    def __init__(self, stops_at: int = -1) -> None:
        super().__init__()
        self.linear, self.stops_at = torch.nn.Linear(3, 1), stops_at
        self.trained: list[tuple[int, ...]] = []
        self.validated: list[tuple[int, int]] = []

    def training_step(self, batch: Any, _: int) -> torch.Tensor:
        """Returns a loss."""
        if self.global_step == self.stops_at:
            raise RuntimeError("stopped")
        self.trained.append((self.current_epoch, *numbers([batch])))
        return self.linear(batch[0][:, :, 0, 0].float() / 255).mean()

    def validation_step(self, batch: Any, _: int) -> None:
        """Notes after how many steps it is called."""
        self.validated.append((self.current_epoch, len(self.trained)))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Returns any optimizer."""
        return torch.optim.SGD(self.parameters(), 0.1)


def fit(packed: Manifest, model: Model, checkpoint: Path | None = None, *callbacks: Any) -> Model:
    dataset = PackedDataset(packed, transform=Resize(16))
    train, validation = DataLoader(dataset, 4, shuffle=True, drop_last=True), DataLoader(dataset, 41)
    trainer = lightning.Trainer(
        accelerator="cpu", devices=1, max_epochs=2, plugins=[LightningEnvironment()], callbacks=list(callbacks),
        enable_checkpointing=bool(callbacks), logger=False, enable_progress_bar=False, enable_model_summary=False,
        num_sanity_val_steps=0,
    )  # fmt: skip
    trainer.fit(model, train, validation, ckpt_path=checkpoint)
    dataset.packed.close()
    return model


@pytest.mark.parametrize("stop", [3, STEPS - 1, STEPS + 4])
def test_a_run_that_an_exception_ended_goes_on_with_its_step(packed: Manifest, tmp_path: Path, stop: int) -> None:
    whole = fit(packed, Model())
    stopped = Model(stop)
    with pytest.raises(RuntimeError, match="stopped"):
        fit(packed, stopped, None, OnExceptionCheckpoint(tmp_path, filename="last"))
    resumed = fit(packed, Model(), tmp_path / "last.ckpt")
    assert stopped.trained + resumed.trained == whole.trained
    ends = [(epoch, end - stop) for epoch, end in whole.validated if end > stop]
    assert resumed.validated == ends != []


def test_a_run_that_was_saved_between_steps_validates_as_well(packed: Manifest, tmp_path: Path) -> None:
    keep = ModelCheckpoint(tmp_path, filename="{step}", every_n_train_steps=7, save_top_k=-1)
    whole = fit(packed, Model(), None, keep)
    resumed = fit(packed, Model(), tmp_path / "step=7.ckpt")
    assert resumed.trained == whole.trained[7:]
    assert resumed.validated == [(0, STEPS - 7), (1, 2 * STEPS - 7)]
