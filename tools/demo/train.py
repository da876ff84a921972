"""Trains a small CNN for two epochs, data-parallel: torchrun --nproc-per-node 2 tools/demo/train.py DATASET."""

from __future__ import annotations

import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from dlio.images import RandomResizedCrop
from dlio.loaders.torch import DataLoader, PackedDataset

EPOCHS = 2
BATCH_SIZE = 32
SIZE = 96


def model(num_classes: int) -> nn.Module:
    """Returns a CNN of four convolutions for uint8 images of shape (n, 3, 96, 96)."""

    def block(inputs: int, outputs: int) -> list[nn.Module]:
        return [nn.Conv2d(inputs, outputs, 3, stride=2, padding=1), nn.BatchNorm2d(outputs), nn.ReLU()]

    layers = [*block(3, 16), *block(16, 32), *block(32, 64), *block(64, 64)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, num_classes))


def main(path: str) -> None:
    """Trains on the data set at `path`; every rank reads its share, all take the same number of steps."""
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // int(os.environ["LOCAL_WORLD_SIZE"])))
    dataset = PackedDataset(path, transform=RandomResizedCrop(SIZE, flip=True))
    loader = DataLoader(dataset, batch_size=BATCH_SIZE, shuffle=True, drop_last=True, num_workers=1, seed=0)
    network = DistributedDataParallel(model(len(dataset.classes)))
    optimizer = torch.optim.Adam(network.parameters(), lr=2e-3)
    for epoch in range(EPOCHS):
        train_epoch(epoch, loader, network, optimizer)
    dist.barrier()
    dist.destroy_process_group()
    sys.stdout.flush()
    os._exit(0)  # else a thread of gloo may abort the interpreter's end (pytorch issue 190489)


def train_epoch(epoch: int, loader: DataLoader, network: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Takes one pass over the data and prints, on rank 0, the results of all ranks."""
    began = time.monotonic()
    sums = torch.zeros(3, dtype=torch.float64)  # samples, loss, right answers
    for images, labels in loader:
        outputs = network(images.float().div_(255))
        loss = nn.functional.cross_entropy(outputs, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        right = (outputs.argmax(dim=1) == labels).sum().item()
        sums += torch.tensor([len(labels), loss.item() * len(labels), right], dtype=torch.float64)
    dist.all_reduce(sums)
    samples, loss_sum, right_sum = sums.tolist()
    if dist.get_rank() == 0:
        seconds = time.monotonic() - began
        print(
            f"epoch {epoch}: {samples:.0f} images on {dist.get_world_size()} ranks, {len(loader)} steps each, "
            f"loss {loss_sum / samples:.3f}, accuracy {right_sum / samples:.3f}, {samples / seconds:.0f} images/s",
            flush=True,
        )


if __name__ == "__main__":
    main(sys.argv[1])
