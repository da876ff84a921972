"""One rank of plain DistributedDataParallel."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from dlio.images import Resize
from dlio.loaders.torch import DataLoader, PackedDataset
from tests.loaders.jobs.reading import DATA, leave_torch_group, numbers, report

CASES: dict[str, dict[str, Any]] = {
    "mask": {"batch_size": 3, "end": "mask"},
    "drop": {"batch_size": 3, "drop_last": True},
    "lanes": {"batch_size": 2, "end": "mask", "lanes": 2},
}

dist.init_process_group("gloo")
dataset = PackedDataset(DATA, transform=Resize(16))
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1, 1))


def train(loader: DataLoader) -> list[list[int]]:
    """Trains one epoch, which hangs if ranks take unequal steps, and returns the photos of each batch."""
    seen = []
    for images, labels, *rest in loader:
        model(images[:, :1, 0, 0].float()).mean().backward()
        seen.append(numbers(images[rest[0] if rest else torch.ones(len(labels), dtype=torch.bool)]))
    return seen


told = {}
for case, options in CASES.items():
    loader = DataLoader(dataset, shuffle=True, num_workers=2, **options)
    told[case] = [train(loader), train(loader)]
report(dist.get_rank(), told)
leave_torch_group()
