"""Lightning starts the second of two ranks itself, or both are started by a launcher."""

from __future__ import annotations

import logging
from typing import Any

import lightning
import torch
from lightning.fabric import Fabric
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import RandomSampler

from dlio.images import Resize
from dlio.loaders.torch import DataLoader, PackedDataset
from tests.loaders.jobs.reading import DATA, FOLDER, leave_torch_group, numbers, report

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
dataset = PackedDataset(DATA, transform=Resize(16))
STRATEGY: dict[str, Any] = {"accelerator": "cpu", "strategy": "ddp", "devices": 2}
QUIET: dict[str, Any] = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}


class Model(lightning.LightningModule):
    """Keeps what it saw."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(3, 1)
        self.seen: dict[int, list[list[int]]] = {}

    def training_step(self, batch: Any, _: int) -> torch.Tensor:
        """Returns a loss; its gradients hang if ranks take unequal steps."""
        self.seen.setdefault(self.current_epoch, []).append(numbers(batch[0]))
        return self.linear(batch[0][:, :, 0, 0].float() / 255).mean()

    def predict_step(self, batch: Any, _: int) -> list[int]:
        """Returns the photos that are no repetitions."""
        images, _, valid = batch
        return numbers(images[valid])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Returns any optimizer."""
        return torch.optim.SGD(self.parameters(), 0.1)


class HookModel(Model):
    """Makes its loader itself, where Lightning notes how."""

    def train_dataloader(self) -> DataLoader:
        """Returns a loader with its own order, which Lightning replaces."""
        return DataLoader(dataset, 3, sampler=RandomSampler(dataset), num_workers=2, seed=7)


def fit(loader: Any, model: Model, checkpoint: str | None = None, **options: Any) -> dict[str, Any]:
    """Returns what was seen, and Lightning's loader."""
    options = {"max_epochs": 2, "enable_checkpointing": False, **STRATEGY, **QUIET, **options}
    trainer = lightning.Trainer(**options)
    trainer.fit(model, loader, ckpt_path=checkpoint)
    used: Any = trainer.train_dataloader
    return {"seen": model.seen, "loader": type(used).__module__, "sampler": type(used.sampler).__name__}


def ours(**options: Any) -> DataLoader:
    """Returns dlio's loader."""
    return DataLoader(dataset, 3, num_workers=2, **options)


keep = ModelCheckpoint(FOLDER, filename="{step}", every_n_train_steps=9, save_top_k=-1)
told: dict[str, Any] = {
    "ours": fit(ours(shuffle=True), Model(), callbacks=[keep], enable_checkpointing=True),
    "resumed": fit(ours(shuffle=True), Model(), f"{FOLDER}/step=9.ckpt"),
    "theirs": fit(torch.utils.data.DataLoader(dataset, 3, shuffle=True), Model()),
    "sampled": fit(ours(sampler=RandomSampler(dataset), seed=7), Model()),
    "hook": fit(None, HookModel()),
}
trainer = lightning.Trainer(**STRATEGY, **QUIET, enable_checkpointing=False)
told["predicted"] = trainer.predict(Model(), ours(end="mask"))
fabric = Fabric(**STRATEGY)
fabric.launch()
loader = fabric.setup_dataloaders(ours(shuffle=True))
told["fabric"] = [[numbers(images) for images, _ in loader] for _ in range(2)]
report(fabric.global_rank, told)
torch.distributed.barrier()
leave_torch_group()
