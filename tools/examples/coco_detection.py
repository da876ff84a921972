"""FCOS of torchvision on COCO with PyTorch on one GPU, or on the processor.

    for part in train2017 val2017; do dlio pack annotations/instances_$part.json coco/$part --source coco \
        --root $part --format webdataset --on-error skip; done
    dlio stage coco/train2017
    python coco_detection.py coco/train2017

Boxes move with the random crop and the flip, and an image whose boxes are all cut off trains as background. The targets
are those of torchvision's detection reference: `boxes` and `labels` for each image, labels from 1.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from dlio.images import RandomResizedCrop
from dlio.loaders.torch import DataLoader, PackedDataset
from dlio.targets import WithTargets


def open_loader(path: str, size: int, batch_size: int) -> DataLoader:
    """Returns batches of square crops of `size` pixels, with the boxes that are at least a third in the crop."""
    transform = WithTargets(RandomResizedCrop(size, scale=(0.3, 1.0), flip=True), visible=1 / 3)
    return DataLoader(PackedDataset(path, transform), batch_size, shuffle=True, num_workers=4, drop_last=True)


def detection_batches(
    batches: Iterable[dict[str, Any]], device: torch.device
) -> Iterator[tuple[list[torch.Tensor], list[dict[str, torch.Tensor]]]]:
    """Yields images, float (3, size, size) from 0 to 1, and targets, as torchvision's detectors take them."""
    for batch in batches:
        images = batch["image"].to(device, non_blocking=True).float() / 255
        pairs = zip(batch["boxes"], batch["labels"], strict=True)
        targets = [{"boxes": boxes.to(device), "labels": labels.to(device) + 1} for boxes, labels in pairs]
        yield list(images), targets


def train(model: torch.nn.Module, loader: DataLoader, epochs: int, device: torch.device) -> None:
    """Trains, and prints the mean loss of each epoch."""
    model.to(device).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4)
    for epoch in range(epochs):
        total = count = 0.0
        for images, targets in detection_batches(loader, device):
            loss = torch.stack(list(model(images, targets).values())).sum()
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            total, count = total + loss.item() * len(images), count + len(images)
        print(f"epoch {epoch}: {count:.0f} images, loss {total / max(1, count):.4f}", flush=True)


def main() -> None:
    """Trains on the data set of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("train", help="the packed data set")
    parser.add_argument("--size", type=int, default=512)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--epochs", type=int, default=12)
    args = parser.parse_args()
    from torchvision.models.detection import fcos_resnet50_fpn

    loader = open_loader(args.train, args.size, args.batch_size)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = fcos_resnet50_fpn(weights=None, weights_backbone=None, num_classes=len(loader.dataset.classes) + 1)
    train(model, loader, args.epochs, device)


if __name__ == "__main__":
    main()
