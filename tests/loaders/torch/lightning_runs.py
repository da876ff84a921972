"""A model of Lightning that notes what it trained on; imported where a test uses it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint, OnExceptionCheckpoint
from lightning.pytorch.plugins.environments import LightningEnvironment

from dlio.dataset.manifest import Manifest
from dlio.images import Resize
from dlio.loaders.torch import DataLoader, PackedDataset
from tests.loaders.photos import numbers

__all__ = ["Model", "ModelCheckpoint", "OnExceptionCheckpoint", "fit"]


class Model(lightning.LightningModule):  # type: ignore[misc]
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
