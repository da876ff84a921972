"""Measures SquashFS images: loading next to a mount, opening a million files, adopting a compressed image, their size.

    python benchmarks/squashfs.py --data /tmp/bench [--rounds 5]

Packing is measured by benchmarks/pack.py (`--only squashfs`), loading compared with RecordIO by
benchmarks/raw_records.py (`--formats recordio,squashfs`). The ways alternate; each figure is a median. CPU time is that
of all processes: of the reader, and of squashfuse, which serves the mount. Everything is in the page cache.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path

import numpy as np
from images import make_set
from raw_records import load, open_loader

from dlio.dataset.manifest import Manifest
from dlio.dataset.schema import IMAGE_CLASSIFICATION
from dlio.formats import squashfs
from dlio.formats.layouts.squashfs.tables import image_tables
from dlio.formats.payloads import npy, paths
from dlio.pack.index import index

THREADS = 2
TICKS = os.sysconf("SC_CLK_TCK")
MILLION = 1_000_000
QUIET = ("-quiet", "-no-progress")


def cpu_of(pid: int) -> float:
    """Returns the CPU seconds of a process so far."""
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / TICKS


@contextmanager
def squashfuse(image: Path, folder: Path) -> Iterator[int]:
    """Mounts an image, and gives the process that serves it."""
    folder.mkdir(exist_ok=True)
    process = subprocess.Popen(["squashfuse_ll", "-f", image, folder])
    while not folder.is_mount() and process.poll() is None:
        time.sleep(0.01)
    try:
        yield process.pid
    finally:
        subprocess.run(["umount", folder], check=True)
        process.wait()


@contextmanager
def kernel_mount(image: Path, folder: Path) -> Iterator[None]:
    """Mounts an image by the kernel, which needs root and a loop device; nothing of it is cached yet."""
    folder.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "squashfs", "-o", "loop,ro", image, folder], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", folder], check=True)


MOUNTS = {"squashfuse_ll": squashfuse} | ({"kernel": kernel_mount} if os.geteuid() == 0 else {})


def read_folder(names: list[str]) -> None:
    """Reads files by threads, in a random order."""
    shuffled = random.Random(0).sample(names, len(names))
    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(read_all, [shuffled[number::THREADS] for number in range(THREADS)]))


def read_all(names: list[str]) -> None:
    """Reads files."""
    for name in names:
        descriptor = os.open(name, os.O_RDONLY)
        while os.read(descriptor, 1 << 20):
            pass
        os.close(descriptor)


def spent(call: Callable[[], None], pid: int | None = None) -> tuple[float, float]:
    """Returns seconds, and CPU seconds of this process and of another one."""
    before, began = time.process_time() + (cpu_of(pid) if pid else 0), time.perf_counter()
    call()
    return time.perf_counter() - began, time.process_time() + (cpu_of(pid) if pid else 0) - before


def compared_with_mount(title: str, folder: Path, loader: Callable[[], None], work: Path, rounds: int) -> None:
    """Prints what an epoch takes, and what reading the same image through a new mount takes, the first pass each."""
    image = folder / Manifest.load(folder).shards[0].files[0].name
    found: dict[str, list[tuple[float, float]]] = {way: [] for way in ("dlio", *MOUNTS)}
    loader()
    for _ in range(rounds):
        found["dlio"].append(spent(loader))
        for way, mounted in MOUNTS.items():
            with mounted(image, work / "mount") as pid:
                names = [str(path) for path in sorted((work / "mount").glob("*/*"))]
                found[way].append(spent(partial(read_folder, names), pid))
    middle = {way: [statistics.median(each) for each in zip(*times, strict=True)] for way, times in found.items()}
    print(f"\n### Loading from an image: {title}\n")
    print("| way | files/s | CPU us a file | x dlio's time | x dlio's CPU time |\n|---|---|---|---|---|")
    for way, (seconds, cpu) in middle.items():
        times, shares = (mine / other for mine, other in zip((seconds, cpu), middle["dlio"], strict=True))
        rate = len(names) / seconds
        print(f"| {way} | {rate:,.0f} | {1e6 * cpu / len(names):.1f} | {times:.1f} | {shares:.1f} |", flush=True)


def made_million(path: Path) -> Path:
    """Returns an image of a million files in 770 folders whose data is a hole."""
    sizes = np.random.default_rng(0).integers(60_000, 160_000, MILLION)
    starts, end = 96 + np.cumsum(sizes) - sizes, 96 + int(sizes.sum())
    stem = paths.stem_of("million")
    hidden = {
        b".label.npy": npy.encode(np.zeros(MILLION, np.int64)),
        b".json": paths.Description(IMAGE_CLASSIFICATION, MILLION).to_bytes(),
    }
    own = np.array([len(content) for content in hidden.values()])
    names = [b"n%08d/%08d.JPEG" % (number // 1300, number) for number in range(MILLION)]
    starts, sizes = np.append(starts, end + np.cumsum(own) - own), np.append(sizes, own)
    superblock, tail = image_tables([*names, *(stem + name for name in hidden)], starts, sizes, end + int(own.sum()))
    with path.open("wb") as file:
        file.write(superblock)
        file.seek(end)
        file.writelines([*hidden.values(), *tail])
    return path


def high_water() -> float:
    """Returns the most memory that this process has held, in MB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1000 for line in lines if line.startswith("VmHWM"))


def open_million(path: Path) -> None:
    """Prints what opening it takes; for its own process."""
    began = time.process_time()
    with closing(squashfs.Reader(path, IMAGE_CLASSIFICATION)) as reader:
        took, peak = time.process_time() - began, high_water()  # `ru_maxrss` has the parent's in it
        print(f"opening {len(reader):,} files: {took:.2f} s of CPU, {peak:.0f} MB at most")


def print_overhead(title: str, folder: Path) -> None:
    """Prints what an image takes in addition to its samples' bytes."""
    manifest = Manifest.load(folder)
    images = sum(shard.files[0].num_bytes for shard in manifest.shards)
    data = sum(path.stat().st_size for path in Path(str(manifest.origin["path"])).glob("*/*"))
    extra = (images - data) / manifest.num_samples
    print(f"{title:22} {100 * (images / data - 1):.2f}% more than the files: {extra:.0f} bytes a sample")


def main() -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, default=Path("/tmp/bench"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--open", type=Path)
    args = parser.parse_args()
    if args.open:
        open_million(args.open)
        return
    options = argparse.Namespace(num_shards=1, threads=THREADS)
    for name in ("big", "small"):
        root = make_set(args.data, name)
        loader = partial(load, open_loader(root, "all", "squashfs", options, shuffled=True))
        print_overhead(name, root / "all-squashfs-1")
        compared_with_mount(name, root / "all-squashfs-1", loader, args.data, args.rounds)
    adopted = args.data / "big" / "adopted"
    if not adopted.exists():
        adopted.mkdir()
        subprocess.run(
            ["mksquashfs", args.data / "big" / "all", adopted / "all.sqsh", *QUIET, "-no-duplicates"], check=True
        )
        index(adopted, format="squashfs")
    options.num_shards = None
    (args.data / "big" / "all-adopted").exists() or (args.data / "big" / "all-adopted").symlink_to(adopted)
    loader = partial(load, open_loader(args.data / "big", "all", "adopted", options, shuffled=False))
    compared_with_mount("default gzip, in order", adopted, loader, args.data, args.rounds)
    million = made_million(args.data / "million.sqsh")
    for _ in range(args.rounds):
        subprocess.run([sys.executable, __file__, "--open", million], check=True)
    million.unlink()


if __name__ == "__main__":
    main()
