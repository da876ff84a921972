"""How busy loaders keep a GPU: training of ResNet-50 from JPEGs of 92 KB, with a given number of CPU cores.

    python -m benchmarks gpu /tmp/data --cores 2 4 8 16 --json

Makes the `big` set of `benchmarks.images` and packs it. Each way trains in its own process, which may use only the
first cores, in batches of 256 crops of 224 pixels, bfloat16, channels last. After some steps for warming up,
`--seconds` of steps count. `GPU busy` is the rate divided by the rate of steps on one batch that stays on the GPU.
`waited` is the share of the time that the training loop waits for a batch. CPU time is that of the process and its
workers during the steps that count. nvJPEG is torchvision's decoder on the GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, repeat
from pathlib import Path
from typing import Any

from benchmarks.images import make_set
from benchmarks.loaders.process_tree import cpu_seconds

BATCH, SIZE, WARM_UP = 256, 224, 12
LIMIT = 90  # seconds of a way, with the start of its process
QUEUED = 3  # steps that may wait on the GPU, as in a loop that prints its loss now and then
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
FORMS = {"plain": [], "crop-ready": ["--crop-ready"], "decode-ready": ["--decode-ready"]}


def of_dlio(data: Path, form: str, workers: int) -> Iterable[Any]:
    """Batches of uint8 on the GPU, by dlio."""
    from dlio.images import RandomResizedCrop
    from dlio.loaders.torch import DataLoader

    transform = RandomResizedCrop(SIZE, flip=True)
    return DataLoader(
        str(data / form), BATCH, shuffle=True, drop_last=True, num_workers=workers, transform=transform, device="cuda"
    )


def of_torchvision(data: Path, workers: int) -> Iterable[Any]:
    """Batches of uint8 by torch's DataLoader over the files, with torchvision's transforms of PIL images."""
    import torch
    from torchvision import datasets
    from torchvision.transforms import v2

    crop = [v2.RandomResizedCrop(SIZE, antialias=True), v2.RandomHorizontalFlip(), v2.PILToTensor()]
    files = datasets.ImageFolder(str(data / "big" / "all"), v2.Compose(crop))
    options = {"pin_memory": True, "persistent_workers": True}
    loader = torch.utils.data.DataLoader(files, BATCH, True, num_workers=workers, drop_last=True, **options)
    return Changed(loader, _copied)


def of_nvjpeg(data: Path, workers: int) -> Iterable[Any]:
    """Batches of uint8: workers read the files, nvJPEG decodes a batch, and the GPU crops and resizes each image."""
    import torch
    from torchvision import datasets, io
    from torchvision.transforms import v2

    files = datasets.ImageFolder(str(data / "big" / "all"), loader=io.read_file)
    crop = v2.Compose([v2.RandomResizedCrop(SIZE, antialias=True), v2.RandomHorizontalFlip()])
    options = {"collate_fn": _joined, "persistent_workers": True}
    loader = torch.utils.data.DataLoader(files, BATCH, True, num_workers=workers, drop_last=True, **options)

    def decoded(batch: tuple[Any, list[int], Any]) -> tuple[Any, Any]:
        encoded, sizes, labels = batch
        images = io.decode_jpeg(list(encoded.split(sizes)), io.ImageReadMode.RGB, device="cuda")
        return torch.stack([crop(image) for image in images]), labels.to("cuda", non_blocking=True)

    return Changed(loader, decoded)


def _joined(samples: list[tuple[Any, int]]) -> tuple[Any, list[int], Any]:
    """Returns the files of a batch in one tensor, since each tensor that a worker hands over is an open file."""
    import torch

    files, labels = zip(*samples, strict=True)
    return torch.cat(files), [len(file) for file in files], torch.tensor(labels)


def _copied(batch: Iterable[Any]) -> list[Any]:
    return [tensor.to("cuda", non_blocking=True) for tensor in batch]


@dataclass(frozen=True)
class Changed:
    """A loader whose batches are changed by a function; each iteration is the next epoch."""

    loader: Iterable[Any]
    change: Callable[[Any], Any]

    def __iter__(self) -> Iterator[Any]:
        return map(self.change, self.loader)


def of_memory() -> Iterable[Any]:
    """One batch, again and again."""
    import torch

    images = torch.randint(0, 256, (BATCH, 3, SIZE, SIZE), dtype=torch.uint8, device="cuda")
    return [(images, torch.zeros(BATCH, dtype=torch.int64, device="cuda"))]


def epochs(loader: Iterable[Any]) -> Iterator[Any]:
    """Yields the batches of epoch after epoch."""
    return chain.from_iterable(repeat(loader))


def train(way: str, data: Path, workers: int, seconds: float) -> dict[str, float]:
    """Trains on one way's batches, and returns what the steps that count took."""
    import torch
    import torchvision

    from dlio.images import Normalize

    loader = {
        "memory": of_memory,
        "torchvision": lambda: of_torchvision(data, workers),
        "nvjpeg": lambda: of_nvjpeg(data, workers),
    }.get(way, lambda: of_dlio(data, way, workers))()
    torch.backends.cudnn.benchmark = True
    model = torchvision.models.resnet50(num_classes=20).to("cuda", memory_format=torch.channels_last)
    normalize = Normalize(MEAN, STD, "bfloat16", channels_last=True)
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)

    def step(images: Any, labels: Any) -> None:
        with torch.autocast("cuda", torch.bfloat16):
            loss = torch.nn.functional.cross_entropy(model(normalize(images)), labels)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()

    began, batches = time.perf_counter(), epochs(loader)
    images, labels = next(batches)
    torch.cuda.synchronize()
    first = time.perf_counter() - began
    for _ in range(WARM_UP):
        step(images, labels)
        images, labels = next(batches)
    torch.cuda.synchronize()
    cpu, began, steps, waited, behind = cpu_seconds(), time.perf_counter(), 0, 0.0, deque[Any]()
    while time.perf_counter() - began < seconds:
        step(images, labels)
        asked = time.perf_counter()
        images, labels = next(batches)
        waited += time.perf_counter() - asked
        behind.append(torch.cuda.current_stream().record_event())
        steps += 1
        if len(behind) > QUEUED:
            behind.popleft().synchronize()
    torch.cuda.synchronize()
    took = time.perf_counter() - began
    cpu = cpu_seconds() - cpu
    count = steps * BATCH
    return {"rate": count / took, "cpu_us": cpu / count * 1e6, "first": first, "waited": waited / took}


WAYS = {
    "dlio, decode-ready": "decode-ready",
    "dlio, crop-ready": "crop-ready",
    "dlio": "plain",
    "torch DataLoader, torchvision": "torchvision",
    "torch DataLoader, nvJPEG on the GPU": "nvjpeg",
}


def measured(way: str, data: Path, cores: int, seconds: float) -> dict[str, float] | None:
    """Runs one way in a process that may use some cores; returns None, and prints why, if it cannot run here."""
    words = [sys.executable, "-m", "benchmarks.gpu", str(data), "--way", way, "--seconds", str(seconds)]
    allowed = ",".join(map(str, sorted(os.sched_getaffinity(0))[:cores]))
    command = ["timeout", str(LIMIT), "taskset", "-c", allowed, *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        said = "\n".join(done.stderr.splitlines()[-3:])
        print(f"{way} with {cores} cores ended with {done.returncode}: {said}", file=sys.stderr)
        return None
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--cores", type=int, nargs="+", default=[2, 4, 8, 16])
    parser.add_argument("--seconds", type=float, default=6)
    parser.add_argument("--way", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.way:
        workers = len(os.sched_getaffinity(0))
        print(json.dumps(train(args.way, args.data, workers, args.seconds)))
        return
    import torch

    root = make_set(args.data, "big")
    for form, words in FORMS.items():
        if not (args.data / form / "manifest.jsonl").exists():
            command = [sys.executable, "-m", "dlio", "pack", root / "all", args.data / form, "--quiet", *words]
            subprocess.run([*map(str, command)], check=True)
    full = measured("memory", args.data, 2, args.seconds)
    assert full is not None
    print(f"## ResNet-50 on one {torch.cuda.get_device_name()}\n")
    print(f"Steps on a batch that lies on the GPU: {full['rate']:,.0f} images/s.\n")
    print("| CPU cores | way | images/s | GPU busy | waited | CPU us an image | first batch, s |")
    print("|---|---|---|---|---|---|---|")
    for cores in args.cores:
        for name, way in WAYS.items():
            if found := measured(way, args.data, cores, args.seconds):
                busy, waited = (f"{share:.0%}" for share in (found["rate"] / full["rate"], found["waited"]))
                cells = [f"{cores}", name, f"{found['rate']:,.0f}", busy, waited, f"{found['cpu_us']:,.0f}"]
                print(f"| {' | '.join(cells)} | {found['first']:.2f} |", flush=True)


if __name__ == "__main__":
    main()
