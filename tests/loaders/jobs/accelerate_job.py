"""One rank under Accelerate."""

from __future__ import annotations

from typing import Any

import torch
from accelerate import Accelerator
from accelerate.data_loader import skip_first_batches
from accelerate.state import PartialState
from torch.utils.data import RandomSampler

from dlio.images import Resize
from dlio.loaders.torch import DataLoader, PackedDataset
from tests.loaders.jobs.reading import DATA, FOLDER, leave_torch_group, numbers, report

accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
dataset = PackedDataset(DATA, transform=Resize(16))
model = torch.nn.Linear(3, 1)
model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), 0.1))


def train(loader: Any) -> dict[str, Any]:
    """Trains one epoch; gradients hang if ranks take unequal steps."""
    seen, gathered, applied = [], [], []
    for images, _ in loader:
        with accelerator.accumulate(model):
            accelerator.backward(model(images[:, :, 0, 0].float() / 255).mean())
            optimizer.step()
            optimizer.zero_grad()
            applied.append(accelerator.sync_gradients)
        seen.append(numbers(images))
        gathered += accelerator.gather_for_metrics(images[:, 0, 0, 0]).tolist()
    return {"seen": seen, "gathered": gathered, "applied": applied}


def resume(loader: Any) -> list[list[int]]:
    """Returns the batches of an epoch that is stopped after three, with two more that are lost."""
    seen = []
    for step, (images, _) in enumerate(loader):
        seen.append(numbers(images))
        if step == 2:
            accelerator.save_state(FOLDER)
        if step == 4:
            break
    accelerator.wait_for_everyone()
    accelerator.load_state(FOLDER)
    return seen[:3] + [numbers(images) for images, _ in loader]


options: dict[str, Any] = {"batch_size": 3, "shuffle": True, "num_workers": 2}
loader = DataLoader(dataset, **options)
ours = accelerator.prepare(loader)
told: dict[str, Any] = {"untouched": ours is loader, "ours": [train(ours), train(ours)]}
skipped = skip_first_batches(ours, 2)
told["skipped"] = [numbers(images) for images, _ in skipped]
told["whole"] = train(ours)["seen"]
told["resumed"] = resume(ours)
theirs = accelerator.prepare(torch.utils.data.DataLoader(dataset, **options))
told["theirs"] = [train(theirs), train(theirs)]
sampled = accelerator.prepare(DataLoader(dataset, 3, sampler=RandomSampler(dataset)))
told["sampled"] = [train(sampled)]
PartialState().device = torch.device("meta")
told["device"] = next(iter(ours))[0].device.type
report(accelerator.process_index, told)
accelerator.end_training()
leave_torch_group()
