"""ResNet-50 by torchvision's recipe of 2022 (IMAGENET1K_V2), on one GPU or on the processor.

    for part in train val; do dlio pack ILSVRC2012/$part imagenet/$part --format tfrecord --crop-ready; done
    for part in train val; do dlio stage imagenet/$part; done
    python imagenet_recipe.py imagenet/train imagenet/val

Crops of 176 pixels, flips, TrivialAugment, random erasing, Mixup and CutMix: dlio's threads do all of it, on uint8, and
the GPU gets a batch of pixels and a batch of soft labels. The recipe's learning rate is that of 8 GPUs with 128
images each; give `--batch-size 1024`, or a learning rate in proportion. Left out is its repeated augmentation.
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from dlio.images import (
    CenterCrop,
    CutMix,
    Mixup,
    Normalize,
    RandomChoice,
    RandomErasing,
    RandomResizedCrop,
    TrivialAugmentWide,
)
from dlio.loaders.torch import DataLoader, PackedDataset

NORMALIZE = Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225), channels_last=True)
MEAN_COLOUR = (124, 116, 104)
EMA_STEPS = 32


def open_loaders(options: argparse.Namespace, device: torch.device) -> tuple[DataLoader, DataLoader]:
    """Returns the training batches, mixed, with soft labels, and the validation batches, with class indices."""
    transform = [
        RandomResizedCrop(options.size, flip=True),
        TrivialAugmentWide(interpolation="bilinear"),
        RandomErasing(0.1, value=MEAN_COLOUR),
        RandomChoice([Mixup(0.2), CutMix(1.0)]),
    ]
    common: dict[str, Any] = {"batch_size": options.batch_size, "num_workers": options.workers, "device": device}
    train = PackedDataset(options.train, transform)
    val = PackedDataset(options.val, CenterCrop(options.val_size, resize=round(options.val_size * 232 / 224)))
    return DataLoader(train, shuffle=True, drop_last=True, **common), DataLoader(val, end="mask", **common)


def optimizer_of(model: nn.Module, rate: float) -> torch.optim.Optimizer:
    """Returns SGD, without weight decay for the normalisation layers."""
    norms = [p for m in model.modules() if isinstance(m, nn.BatchNorm2d) for p in m.parameters(recurse=False)]
    known = set(map(id, norms))
    others = [p for p in model.parameters() if id(p) not in known]
    groups = [{"params": others}, {"params": norms, "weight_decay": 0.0}]
    return torch.optim.SGD(groups, rate, momentum=0.9, weight_decay=2e-5)


def schedule_of(optimizer: torch.optim.Optimizer, epochs: int, warm_up: int) -> torch.optim.lr_scheduler.LRScheduler:
    """Returns the learning rates: a linear warm-up from a hundredth, then a cosine."""
    rates = torch.optim.lr_scheduler
    rising = rates.LinearLR(optimizer, start_factor=0.01, total_iters=warm_up)
    falling = rates.CosineAnnealingLR(optimizer, max(1, epochs - warm_up))
    return rates.SequentialLR(optimizer, [rising, falling], [warm_up])


def train(model: nn.Module, options: argparse.Namespace, device: torch.device) -> AveragedModel:
    """Trains, prints a line for each epoch, and returns the mean of the weights."""
    batches, val = open_loaders(options, device)
    model.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = optimizer_of(model, options.rate)
    schedule = schedule_of(optimizer, options.epochs, options.warm_up)
    decay = 1 - min(1.0, (1 - 0.99998) * options.batch_size * EMA_STEPS / options.epochs)
    mean = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(decay), use_buffers=True)
    loss_of = nn.CrossEntropyLoss(label_smoothing=0.1)
    scaler = torch.amp.GradScaler(device.type, enabled=device.type == "cuda")
    for epoch in range(options.epochs):
        model.train()
        total = 0.0
        for step, (images, labels) in enumerate(batches):
            with torch.autocast(device.type, enabled=device.type == "cuda"):
                loss = loss_of(model(NORMALIZE(images)), labels)
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            if step % EMA_STEPS == 0:
                mean.update_parameters(model)
                if epoch < options.warm_up:
                    mean.n_averaged.zero_()  # the next mean replaces it
            total += float(loss.detach())
        schedule.step()
        right = accuracy(mean, val)
        print(
            f"epoch {epoch}: loss {total / len(batches):.4f}, top-1 of the mean {right:.2%}; {batches.verdict()}",
            flush=True,
        )
    return mean


@torch.inference_mode()
def accuracy(model: nn.Module, val: DataLoader) -> float:
    """Returns the share of validation images whose class is found, each counted once."""
    model.eval()
    right = count = 0
    for images, labels, valid in val:
        right += int(((model(NORMALIZE(images)).argmax(1) == labels) & valid).sum())
        count += int(valid.sum())
    return right / max(1, count)


def arguments(words: list[str] | None = None) -> argparse.Namespace:
    """Returns the command line; the defaults are the recipe's."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("train", help="the packed data set to train on")
    parser.add_argument("val", help="the packed data set to validate on")
    parser.add_argument("--size", type=int, default=176)
    parser.add_argument("--val-size", type=int, default=224)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--rate", type=float, default=0.5)
    parser.add_argument("--epochs", type=int, default=600)
    parser.add_argument("--warm-up", type=int, default=5, help="epochs")
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--out", default="resnet50.pt", help="the file for the mean of the weights")
    return parser.parse_args(words)


def main() -> None:
    """Trains on the data sets of the command line."""
    options = arguments()
    from torchvision.models import resnet50

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    classes = len(PackedDataset(options.train).classes)
    torch.save(train(resnet50(num_classes=classes), options, device).module.state_dict(), options.out)


if __name__ == "__main__":
    main()
