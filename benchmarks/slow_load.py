"""Measures loaders over shards on slow storage: images a second, and those of the same loader over shards in memory.

    python benchmarks/slow_load.py --data /tmp/bench
    python benchmarks/slow_load.py --data /tmp/bench --latencies 5 --rounds 9 --workers 2 --format recordio

The slow storage is `benchmarks/slow_mount.c`, a FUSE mount past the page cache, where each read (of up to 128 KiB, as
the kernel asks for them) takes so many milliseconds; it is compiled here (libfuse3-dev). Each round runs an epoch of
every way in turn; given are the medians, and those of the ratios to memory within a round. The first epoch, which opens
the shards, is told apart. Loops of 64 threads that read the same records first show what the mount itself can do.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from images import make_set
from slow_mount import mounted

import dlio
from dlio.dataset.manifest import Manifest
from dlio.images import RandomResizedCrop
from dlio.loaders.batch_sources import ArrayBatches
from dlio.loaders.dataset import PackedSamples
from dlio.loaders.loader import Loader
from dlio.loaders.torch import DataLoader, PackedDataset

BATCH = 256
MOUNT_SECONDS = 20.0
Epoch = Callable[[], int]


def bare_loop(root: Path, num_threads: int = 64, num_reads: int = 6000) -> float:
    """Returns reads a second of 92 KB at random places by many threads."""
    places = threading.local()

    def read(number: int) -> None:
        path, size = files[number % len(files)]
        if not hasattr(places, "opened"):
            places.opened = {each: os.open(each, os.O_RDONLY) for each, _ in files}
        os.pread(places.opened[path], 92_000, random.randrange(max(1, size - 92_000)))

    files = [(path, path.stat().st_size) for path in sorted(root.iterdir()) if path.stat().st_size > 1 << 20]
    with ThreadPoolExecutor(num_threads) as pool:
        list(pool.map(read, range(num_threads)))
        began = time.perf_counter()
        list(pool.map(read, range(num_reads)))
        return num_reads / (time.perf_counter() - began)


@dataclass(frozen=True, slots=True)
class Way:
    """A loader over one folder."""

    name: str
    epoch: Epoch


def torch_epoch(root: Path, options: argparse.Namespace, *, shuffle: bool) -> Epoch:
    """Returns what runs an epoch of torch's DataLoader and counts images."""
    dataset = PackedDataset(Manifest.load(root), transform=RandomResizedCrop(224, flip=True))
    loader = DataLoader(dataset, batch_size=BATCH, shuffle=shuffle, num_workers=options.workers)
    return lambda: sum(len(images) for images, _ in loader)


def raw_epoch(root: Path, options: argparse.Namespace, *, shuffle: bool) -> Epoch:
    """Returns what runs an epoch of records as they are stored."""
    source = ArrayBatches(PackedSamples(Manifest.load(root)))
    loader = Loader(source, BATCH, shuffle=shuffle, num_workers=options.workers, end="drop")
    return lambda: sum(len(batch["label"]) for batch in loader)


def keras_epoch(root: Path, options: argparse.Namespace, *, shuffle: bool) -> Epoch:
    """Returns what runs an epoch of batches of a PackedPyDataset, made by threads as Keras's are."""
    from dlio.loaders.keras import PackedPyDataset

    batches = PackedPyDataset(Manifest.load(root), BATCH, transform=RandomResizedCrop(224, flip=True), shuffle=shuffle)

    def epoch() -> int:
        with ThreadPoolExecutor(options.workers) as pool:
            return sum(len(pair[0]) for pair in pool.map(batches.__getitem__, range(len(batches))))

    return epoch


KINDS = {"torch": torch_epoch, "raw": raw_epoch, "keras": keras_epoch}


def timed(epoch: Epoch) -> tuple[float, float]:
    """Returns images a second, and microseconds of this process's CPU an image, those of a mount's server left out."""
    began, worked = time.perf_counter(), time.process_time()
    count = epoch()
    return count / (time.perf_counter() - began), (time.process_time() - worked) * 1e6 / count


def compare(ways: list[Way], rounds: int) -> None:
    """Prints the rates of the ways as a table, the first of which is what the others are compared with."""
    runs: dict[str, list[tuple[float, float]]] = {way.name: [] for way in ways}
    for _ in range(rounds + 1):
        for way in ways:
            runs[way.name].append(timed(way.epoch))
    print("| shards | images/s | x memory | CPU us an image | first epoch, images/s |\n|---|---|---|---|---|")
    base = runs[ways[0].name][1:]
    for name, each in runs.items():
        ratios = sorted(rate / other for (rate, _), (other, _) in zip(each[1:], base, strict=True))
        rate, cpu = (statistics.median(column) for column in zip(*each[1:], strict=True))
        spread = f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
        print(f"| {name} | {rate:,.0f} | {spread} | {cpu:,.0f} | {each[0][0]:,.0f} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Loaders over slow storage compared with memory.")
    parser.add_argument("--data", type=Path, required=True, help="a folder for images, shards and mounts")
    parser.add_argument("--latencies", default="0,1,5,20", help="milliseconds of a read")
    parser.add_argument("--kinds", default="torch,raw,keras")
    parser.add_argument("--orders", default="shuffled,in order")
    parser.add_argument("--format", default="recordio")
    parser.add_argument("--workers", type=int, default=2, help="threads that decode")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    packed = options.data / f"slow-{options.format}"
    images = make_set(options.data, "big") / "all"
    dlio.pack(dlio.sources.image_folder(images), packed, format=options.format, shard_size=32 << 20)
    with ExitStack() as mounts:
        roots = {"memory": packed}
        for latency in options.latencies.split(","):
            mount = options.data / "mounts" / latency
            roots[f"{latency} ms"] = mounts.enter_context(mounted(packed, mount, float(latency)))
        for name, root in roots.items():
            print(f"64 bare threads, {name}: {bare_loop(root):,.0f} reads/s", flush=True)
        for kind in options.kinds.split(","):
            for order in options.orders.split(","):
                print(f"\n### {kind}, {order}, {options.workers} threads, {options.format}\n", flush=True)
                make = KINDS[kind]
                ways = [Way(name, make(root, options, shuffle=order == "shuffled")) for name, root in roots.items()]
                compare(ways, options.rounds)


if __name__ == "__main__":
    main()
