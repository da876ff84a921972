"""One rank under the Trainer of transformers."""

from __future__ import annotations

from typing import Any

import torch
from transformers import Trainer, TrainingArguments

from dlio.images import Resize
from dlio.loaders.torch import DataLoader, PackedDataset
from tests.loaders.jobs.reading import DATA, FOLDER, leave_torch_group, numbers, report

dataset = PackedDataset(DATA, transform=Resize(16))


class Classifier(torch.nn.Module):
    """Keeps what it saw."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(3, 3)
        self.seen: list[list[int]] = []

    def forward(self, images: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        """Returns the loss."""
        self.seen.append(numbers(images))
        return {"loss": torch.nn.functional.cross_entropy(self.linear(images[:, :, 0, 0].float() / 255), labels)}


class OursTrainer(Trainer):
    """Takes dlio's DataLoader."""

    def get_train_dataloader(self) -> DataLoader:
        """Returns this rank's part."""
        return DataLoader(dataset, self.args.per_device_train_batch_size, shuffle=True, num_workers=2)

    def compute_loss(self, model: Any, inputs: Any, *args: Any, **options: Any) -> Any:
        """Returns the loss of a pair."""
        return model(*inputs)["loss"]


def collate(samples: list[Any]) -> dict[str, Any]:
    """Returns a batch by the names of the model's arguments, as the Trainer wants it."""
    images, labels = torch.utils.data.default_collate(samples)
    return {"images": images, "labels": labels}


def train(kind: type[Trainer], checkpoint: str | None = None, **options: Any) -> list[list[int]]:
    """Returns the batches of two epochs, or of what is left of them after a checkpoint."""
    arguments = TrainingArguments(
        FOLDER,
        num_train_epochs=2,
        per_device_train_batch_size=3,
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
        logging_strategy="no",
        ddp_find_unused_parameters=False,
        save_strategy="steps",
        save_steps=9,
        **options,
    )
    model = Classifier()
    trainer = kind(model=model, args=arguments, train_dataset=dataset, data_collator=collate)
    trainer.train(resume_from_checkpoint=checkpoint)
    return model.seen


told = {
    "theirs": train(Trainer, dataloader_num_workers=1),
    "ours": train(OursTrainer),
    "resumed": train(OursTrainer, f"{FOLDER}/checkpoint-9"),
}
report(torch.distributed.get_rank(), told)
leave_torch_group()
