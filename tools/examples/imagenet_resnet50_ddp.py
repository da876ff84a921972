"""ResNet-50 on ImageNet with PyTorch, data-parallel: the 90 epochs of Goyal et al. (arXiv:1706.02677).

    for part in train val; do dlio pack ILSVRC2012/$part imagenet/$part --format tfrecord --crop-ready; done
    for part in train val; do dlio stage imagenet/$part; done                     # once on each node
    torchrun --standalone --nproc-per-node 4 imagenet_resnet50_ddp.py imagenet/train imagenet/val

As a SLURM job that continues where the last one ended, on any number of nodes:

    #SBATCH --nodes=4 --ntasks-per-node=1 --gpus-per-node=4 --cpus-per-task=48 --time=4:00:00
    for part in train val; do srun dlio stage imagenet/$part; done
    srun torchrun --nnodes $SLURM_NNODES --nproc-per-node 4 --rdzv-backend c10d --rdzv-id $SLURM_JOB_ID \
        --rdzv-endpoint $(scontrol show hostnames | head -n 1):29500 \
        imagenet_resnet50_ddp.py imagenet/train imagenet/val --checkpoint resnet50.pt
"""

from __future__ import annotations

import argparse
import math
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from dlio.images import CenterCrop, RandomResizedCrop
from dlio.loaders.torch import DataLoader, PackedDataset

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class Normalise(nn.Module):
    """Turns uint8 images into float of mean 0 and variance 1, where they are: on the device."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(MEAN).view(3, 1, 1) * 255, persistent=False)
        self.register_buffer("std", torch.tensor(STD).view(3, 1, 1) * 255, persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        return (images - self.mean) / self.std


def convolution(inputs: int, outputs: int, size: int, stride: int = 1) -> list[nn.Module]:
    """Returns a convolution and its normalisation."""
    return [nn.Conv2d(inputs, outputs, size, stride, size // 2, bias=False), nn.BatchNorm2d(outputs)]


class Bottleneck(nn.Module):
    """Convolutions 1x1, 3x3 and 1x1, added to a shortcut; the stride is that of the 3x3, as in version 1.5."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = 4 * width
        first, second = convolution(inputs, width, 1), convolution(width, width, 3, stride)
        self.body = nn.Sequential(*first, nn.ReLU(), *second, nn.ReLU(), *convolution(width, outputs, 1))
        nn.init.zeros_(self.body[-1].weight)  # a block begins as its shortcut
        same = stride == 1 and inputs == outputs
        self.shortcut = nn.Identity() if same else nn.Sequential(*convolution(inputs, outputs, 1, stride))

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.relu(self.body(x) + self.shortcut(x))


def resnet50(num_classes: int, width: int = 64) -> nn.Sequential:
    """Returns the network, for uint8 images of shape (n, 3, height, width)."""
    stem = [Normalise(), *convolution(3, width, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    blocks, inputs = [], width
    for stage, depth in enumerate((3, 4, 6, 3)):
        for number in range(depth):
            blocks.append(Bottleneck(inputs, width << stage, 2 if stage and not number else 1))
            inputs = 4 * width << stage
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, num_classes))


class Training:
    """Network, optimiser and loaders; a checkpoint holds the states of its parts."""

    def __init__(self, options: argparse.Namespace, device: torch.device) -> None:
        self.options, self.device, self.steps = options, device, 0
        dataset = PackedDataset(options.train, RandomResizedCrop(options.size, flip=True))
        cuda, common = device.type == "cuda", {"batch_size": options.batch_size, "num_workers": options.workers}
        self.train = DataLoader(dataset, shuffle=True, drop_last=True, pin_memory=cuda, **common)
        self.val = DataLoader(PackedDataset(options.val, CenterCrop(options.size)), end="mask", **common)
        network = resnet50(len(dataset.classes), options.width).to(device, memory_format=torch.channels_last)
        self.network = DistributedDataParallel(network)
        self.optimizer = torch.optim.SGD(network.parameters(), 0.1, 0.9, weight_decay=1e-4, nesterov=True)
        self.scaler = torch.amp.GradScaler(device.type, enabled=cuda)
        self.parts = {"network": network, "optimizer": self.optimizer, "scaler": self.scaler, "loader": self.train}

    def learning_rate(self, epochs: float) -> float:
        """Returns 0.1 for each 256 images of the global batch: linear warm-up, then a cosine to zero."""
        peak = 0.1 * self.options.batch_size * dist.get_world_size() / 256
        warmup = self.options.warmup_epochs
        if epochs < warmup:
            return peak * (epochs + 0.01) / warmup
        return peak * (1 + math.cos(math.pi * (epochs - warmup) / (self.options.epochs - warmup))) / 2

    def train_epoch(self, epoch: int) -> None:
        """Takes the rest of an epoch, or as many steps of it as are left of `--steps`."""
        self.network.train()
        begin = samples = self.train.state_dict()["samples"]
        loss_sum = torch.zeros((), device=self.device)
        for images, labels in self.train:
            self.optimizer.param_groups[0]["lr"] = self.learning_rate(epoch + samples / len(self.train.dataset))
            loss = nn.functional.cross_entropy(self._forward(images), labels.to(self.device), label_smoothing=0.1)
            self.optimizer.zero_grad()
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
            loss_sum += loss.detach() * len(labels)
            samples += len(labels) * dist.get_world_size()
            self.steps += 1
            if self.steps == self.options.steps:
                break
            if self.steps % self.options.save_every == 0:
                self.save()
        dist.all_reduce(loss_sum)
        say(f"epoch {epoch}: {samples - begin} images, loss {loss_sum / (samples - begin):.4f}; {self.train.verdict()}")

    def _forward(self, images: Tensor) -> Tensor:
        images = images.to(self.device, non_blocking=True, memory_format=torch.channels_last)
        with torch.autocast(self.device.type, torch.float16, enabled=self.device.type == "cuda"):
            return self.network(images)

    @torch.no_grad()
    def evaluate(self) -> None:
        """Returns how many of the validation images are right, each counted once over all ranks."""
        self.network.eval()
        sums = torch.zeros(3, device=self.device)
        for images, labels, valid in self.val:
            best = self._forward(images).topk(min(5, len(self.train.dataset.classes))).indices
            right = (best == labels.to(self.device)[:, None]) & valid.to(self.device)[:, None]
            sums += torch.tensor([right[:, 0].sum(), right.sum(), valid.sum()], device=self.device)
        dist.all_reduce(sums)
        say(f"validation: {sums[2]:.0f} images, top-1 {sums[0] / sums[2]:.2%}, top-5 {sums[1] / sums[2]:.2%}")

    def save(self) -> None:
        """Writes the checkpoint, on rank 0; a job killed while it writes leaves the one before."""
        if dist.get_rank() == 0:
            aside = self.options.checkpoint.with_suffix(".partial")
            torch.save({name: part.state_dict() for name, part in self.parts.items()}, aside)
            aside.replace(self.options.checkpoint)

    def load(self) -> None:
        """Continues where the checkpoint was written, with any number of ranks and any batch size."""
        state = torch.load(self.options.checkpoint, self.device, weights_only=True)
        for name, part in self.parts.items():
            part.load_state_dict(state[name])


def say(text: str) -> None:
    """Prints a line, on rank 0."""
    if dist.get_rank() == 0:
        print(text, flush=True)


def join() -> torch.device:
    """Joins the job, and returns the device of this rank."""
    torch.manual_seed(0)
    if not torch.cuda.is_available():
        dist.init_process_group("gloo")
        return torch.device("cpu")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    return torch.device("cuda")


def arguments() -> argparse.Namespace:
    """Returns the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("train", type=Path, help="the packed training images")
    parser.add_argument("val", type=Path, help="the packed validation images")
    parser.add_argument("--epochs", type=int, default=90)
    parser.add_argument("--warmup-epochs", type=int, default=5)
    parser.add_argument("--steps", type=int, help="stop after so many, with a checkpoint")
    parser.add_argument("--batch-size", type=int, default=256, help="images of one rank's batch")
    parser.add_argument("--size", type=int, default=224, help="height and width of the images")
    parser.add_argument("--width", type=int, default=64, help="channels of the first convolution")
    parser.add_argument("--checkpoint", type=Path, default=Path("resnet50.pt"), help="written, and gone on from")
    parser.add_argument("--save-every", type=int, default=1000, help="steps between checkpoints within an epoch")
    cores = max(1, len(os.sched_getaffinity(0)) // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
    parser.add_argument("--workers", type=int, default=cores, help="threads that decode; all cores by default")
    return parser.parse_args()


def main() -> None:
    """Trains for the epochs, or steps, that are left."""
    options = arguments()
    training = Training(options, join())
    if options.checkpoint.exists():
        training.load()
    for epoch in range(training.train.state_dict()["epoch"], options.epochs):
        training.train_epoch(epoch)
        training.save()
        if training.steps == options.steps:
            break
        training.evaluate()
    dist.barrier()
    dist.destroy_process_group()
    sys.stdout.flush()
    os._exit(0)  # else a thread of gloo may abort the interpreter's end (pytorch issue 190489)


if __name__ == "__main__":
    main()
