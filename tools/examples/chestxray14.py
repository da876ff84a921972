"""DenseNet-121 on ChestX-ray14 with PyTorch, data-parallel: 14 findings at once, the split that the NIH publishes.

    for part in train_val test; do dlio pack CXR8/${part}_list.txt xrays/$part --format tfrecord \
        --resize 256 --encoding jpeg --quality 95; done
    for part in train_val test; do dlio stage xrays/$part; done                   # once on each node
    torchrun --standalone --nproc-per-node 4 chestxray14.py xrays/train_val xrays/test

The images of 1024 x 1024 are packed with a shorter edge of 256, as the networks see 224. Settings are CheXNet's
(arXiv:1711.05225), from random weights. What counts is the area under the ROC
curve of each finding, over all test images.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from dlio.images import CenterCrop, RandomResizedCrop
from dlio.loaders.torch import DataLoader, PackedDataset


class DenseLayer(nn.Module):
    """Adds `growth` channels to those it gets."""

    def __init__(self, inputs: int, growth: int) -> None:
        super().__init__()
        self.body = nn.Sequential(*convolution(inputs, 4 * growth, 1), *convolution(4 * growth, growth, 3))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, self.body(x)], dim=1)


def convolution(inputs: int, outputs: int, size: int) -> list[nn.Module]:
    """Returns normalisation, activation and convolution."""
    return [nn.BatchNorm2d(inputs), nn.ReLU(), nn.Conv2d(inputs, outputs, size, padding=size // 2, bias=False)]


def densenet(num_classes: int, growth: int, depths: list[int]) -> nn.Sequential:
    """Returns a DenseNet (arXiv:1608.06993); growth 32 and depths 6, 12, 24 and 16 make DenseNet-121."""
    channels = 2 * growth
    layers = [nn.Conv2d(3, channels, 7, 2, 3, bias=False), nn.BatchNorm2d(channels), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    for number, depth in enumerate(depths):
        if number:
            layers += [*convolution(channels, channels // 2, 1), nn.AvgPool2d(2)]
            channels //= 2
        layers += [DenseLayer(channels + layer * growth, growth) for layer in range(depth)]
        channels += depth * growth
    layers += [nn.BatchNorm2d(channels), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(channels, num_classes))


def scores(network: nn.Module, images: Tensor, device: torch.device) -> Tensor:
    """Returns the network's output for uint8 images (n, 3, height, width): logits (n, findings)."""
    images = images.to(device, non_blocking=True, memory_format=torch.channels_last)
    with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
        return network((images - 124.0) / 58.0).float()


def train_epoch(network: nn.Module, loader: DataLoader, optimizer: torch.optim.Adam, device: torch.device) -> float:
    """Takes one pass over the training images and returns the mean loss over all ranks."""
    network.train()
    sums = torch.zeros(2, device=device)
    for images, findings in loader:  # float32 (n, 14), 1 for what is found
        loss = nn.functional.binary_cross_entropy_with_logits(scores(network, images, device), findings.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        sums += torch.stack([loss.detach(), torch.ones_like(loss)])
    dist.all_reduce(sums)
    return float(sums[0] / sums[1])


@torch.no_grad()
def evaluate(network: nn.Module, loader: DataLoader, device: torch.device) -> tuple[Tensor, int]:
    """Returns the area under the ROC curve of each finding, and of how many images: each once, over all ranks."""
    network.eval()
    batches = [(scores(network, images, device), findings, valid) for images, findings, valid in loader]
    mine = [torch.cat(columns).to(device) for columns in zip(*batches, strict=True)]
    everyones = []
    for column in mine:  # `end="mask"` gives every rank as many rows
        gathered = [torch.empty_like(column) for _ in range(dist.get_world_size())]
        dist.all_gather(gathered, column)
        everyones.append(torch.cat(gathered).cpu())
    logits, findings, valid = everyones
    return area_under_roc(logits[valid], findings[valid]), int(valid.sum())


def area_under_roc(logits: Tensor, truth: Tensor) -> Tensor:
    """Returns the exact area for each column, float64 (k,), from Mann and Whitney's U; nan where all are alike.

    It is the chance that an image with the finding gets a higher logit than one without, ties counting half: the sum of
    the ranks of those with it, less its smallest possible value, over the number of pairs.
    """
    ranks = torch.stack([mean_ranks(column) for column in logits.T], dim=1)
    with_it = truth.sum(dim=0, dtype=torch.float64)
    u = (ranks * truth).sum(dim=0) - with_it * (with_it + 1) / 2
    return u / (with_it * (len(truth) - with_it))


def mean_ranks(values: Tensor) -> Tensor:
    """Returns the rank of each value from 1, the mean rank where values are equal; float64 (n,)."""
    _, place, counts = torch.unique(values, return_inverse=True, return_counts=True)
    last = counts.cumsum(0).double()
    return (last - (counts - 1) / 2)[place]


def arguments() -> argparse.Namespace:
    """Returns the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("train", help="the packed images of train_val_list.txt")
    parser.add_argument("test", help="the packed images of test_list.txt")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=16, help="images of one rank's batch")
    parser.add_argument("--learning-rate", type=float, default=1e-3, help="for Adam; a cosine takes it to zero")
    parser.add_argument("--size", type=int, default=224, help="height and width of the images")
    parser.add_argument("--growth", type=int, default=32, help="channels that each layer adds")
    parser.add_argument("--depths", type=int, nargs="+", default=[6, 12, 24, 16], help="layers of each block")
    parser.add_argument("--weights", type=Path, default=Path("chestxray14.pt"), help="written after each epoch")
    parser.add_argument("--workers", type=int, default=4, help="threads that decode")
    return parser.parse_args()


def main() -> None:
    """Trains, and prints the test result after each epoch."""
    options = arguments()
    cuda = torch.cuda.is_available()
    if cuda:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    device = torch.device("cuda" if cuda else "cpu")
    dist.init_process_group("nccl" if cuda else "gloo")
    torch.manual_seed(0)
    crop = RandomResizedCrop(options.size, scale=(0.8, 1.0), flip=True)
    common = {"batch_size": options.batch_size, "num_workers": options.workers, "pin_memory": cuda}
    train = DataLoader(PackedDataset(options.train, crop), shuffle=True, drop_last=True, **common)
    test = DataLoader(PackedDataset(options.test, CenterCrop(options.size)), end="mask", **common)
    findings = train.dataset.classes
    network = densenet(len(findings), options.growth, options.depths).to(device, memory_format=torch.channels_last)
    parallel = DistributedDataParallel(network)
    optimizer = torch.optim.Adam(network.parameters(), options.learning_rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, options.epochs)
    for epoch in range(options.epochs):
        loss = train_epoch(parallel, train, optimizer, device)
        schedule.step()
        areas, num_images = evaluate(parallel, test, device)
        if dist.get_rank() == 0:
            torch.save(network.state_dict(), options.weights)
            print(f"epoch {epoch}: loss {loss:.4f}, mean area {areas.nanmean():.4f}; {train.verdict()}", flush=True)
    if dist.get_rank() == 0:
        print(f"area under the ROC curve, {num_images} images:")
        print("\n".join(f"{name:20}{area:.4f}" for name, area in zip(findings, areas.tolist(), strict=True)))
    dist.barrier()
    dist.destroy_process_group()
    sys.stdout.flush()
    os._exit(0)  # else a thread of gloo may abort the interpreter's end (pytorch issue 190489)


if __name__ == "__main__":
    main()
