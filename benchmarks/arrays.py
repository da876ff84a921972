"""Measures arrays of one shape, packed and read: CPU microseconds a sample, ways interleaved, the least over rounds.

    python benchmarks/arrays.py small --data /dev/shm/arrays
    python benchmarks/arrays.py large --data /dev/shm/arrays --rounds 9
    python benchmarks/arrays.py pack --data /dev/shm/arrays --formats recordio,hdf5

`small` reads 20,480 of uint8[32,32,3], shuffled over two shards, in batches of 256: as they are, with
`RandomCrop(32, padding=4, flip=True)` and with `RandomResizedCrop(32, flip=True)`; without a thread and with one.
`large` reads 256 of float32[512,512] in batches of 8, shuffled, beside a loop that copies each out of a mapped file
into the rows of one array that it keeps. `pack` packs the small ones, and the same bytes as `image: bytes`.
"""

from __future__ import annotations

import argparse
import mmap
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import dlio
from dlio import formats
from dlio.dataset.schema import Sample, Schema
from dlio.images import RandomCrop, RandomResizedCrop, Transform
from dlio.loaders._prefetch.batch_sources import ArrayBatches
from dlio.loaders.dataset import PackedSamples
from dlio.loaders.loader import Loader
from dlio.pack.listing.base import Listing
from dlio.pack.listing.keys import Keys

SMALL, LARGE = np.dtype(("uint8", (32, 32, 3))), np.dtype(("float32", (512, 512)))
NUM_SMALL, NUM_LARGE, NUM_PACKED, NUM_DIFFERENT = 20_480, 256, 8_000, 16
TRANSFORMS: dict[str, Transform | None] = {
    "as they are": None,
    "padded crop": RandomCrop(32, padding=4, flip=True),
    "resized crop": RandomResizedCrop(32, flip=True),
}


@dataclass(frozen=True)
class Arrays:
    """A source of random arrays with labels, of which a few differ; `as_bytes` gives their bytes."""

    path: Path
    count: int
    kind: np.dtype
    as_bytes: bool = False
    name: str = "arrays"

    def listing(self) -> Listing:
        """Returns what is to be packed."""
        numbers = np.arange(self.count)
        shape = f"{self.kind.base}[{','.join(map(str, self.kind.shape))}]"
        schema = Schema.of({"image": "bytes" if self.as_bytes else shape, "label": "int64"})
        columns = {"label": numbers % 10, "number": numbers}
        sizes = np.full(self.count, self.kind.itemsize)
        return Listing(schema, Keys.of(f"{n:07d}" for n in numbers), sizes, columns, (), versions=0 * numbers)

    @contextmanager
    def reader(self, listing: Listing) -> Iterator[Callable[[int], Sample]]:
        """Yields what returns a sample."""
        random = np.random.default_rng(0)
        arrays = [random.integers(0, 255, self.kind.shape).astype(self.kind.base) for _ in range(NUM_DIFFERENT)]
        values = [array.tobytes() for array in arrays] if self.as_bytes else arrays
        numbers, labels = listing.columns["number"], listing.columns["label"]

        def read(row: int) -> Sample:
            value = values[int(numbers[row]) % NUM_DIFFERENT]
            return Sample(listing.keys[row], {"image": value, "label": int(labels[row])})

        yield read


def packed(data: Path, name: str, source: Arrays, num_shards: int) -> Path:
    """Returns a folder of packed arrays, made where it is not there."""
    folder = data / f"{name}-{source.kind.base}"
    if not (folder / "manifest.jsonl").exists():
        dlio.pack(source, folder, format=name, num_shards=num_shards, engine="serial")
    return folder


def read_all(loader: Loader) -> None:
    """Runs an epoch."""
    for _ in loader:
        pass


def copy_all(data: mmap.mmap, order: list[int]) -> None:
    """Copies arrays out of a mapped file, in batches of 8."""
    batch, source = np.empty((8, *LARGE.shape), LARGE.base), np.frombuffer(data, LARGE)
    for place, number in enumerate(order):
        batch[place % 8] = source[number]


def microseconds(ways: dict[str, Callable[[], None]], count: int, rounds: int) -> dict[str, list[float]]:
    """Returns the CPU time of each way, ascending; the first round warms up."""
    found: dict[str, list[float]] = {way: [] for way in ways}
    for number in range(rounds + 1):
        for way, run in ways.items():
            begin = time.process_time()
            run()
            if number:
                found[way].append((time.process_time() - begin) / count * 1e6)
    return {way: sorted(times) for way, times in found.items()}


def show(found: dict[str, list[float]]) -> None:
    """Prints the least and the median of each way."""
    for way, times in found.items():
        print(f"{way:45} {times[0]:8.2f} {times[len(times) // 2]:8.2f}", flush=True)


def small(data: Path, name: str, rounds: int) -> None:
    """Measures reading of small arrays."""
    folder = packed(data, name, Arrays(data, NUM_SMALL, SMALL), 2)
    with ExitStack() as stack:
        ways: dict[str, Callable[[], None]] = {}
        for label, transform in TRANSFORMS.items():
            for num_threads in (0, 1):
                source = ArrayBatches(PackedSamples(folder, transform))
                loader = stack.enter_context(closing(Loader(source, 256, shuffle=True, num_threads=num_threads)))
                ways[f"{name}, {label}, threads: {num_threads}"] = lambda loader=loader: read_all(loader)
        show(microseconds(ways, NUM_SMALL, rounds))


def large(data: Path, name: str, rounds: int) -> None:
    """Measures reading of large arrays, beside the loop."""
    folder = packed(data, name, Arrays(data, NUM_LARGE, LARGE), 1)
    flat = data / "large.bin"
    np.ones((NUM_LARGE, *LARGE.shape), LARGE.base).tofile(flat)
    order = np.random.default_rng(0).permutation(NUM_LARGE).tolist()
    with ExitStack() as stack:
        mapped = mmap.mmap(stack.enter_context(flat.open("rb")).fileno(), 0, prot=mmap.PROT_READ)
        ways: dict[str, Callable[[], None]] = {"loop over a mapped file": lambda: copy_all(mapped, order)}
        for num_threads in (0, 1):
            source = ArrayBatches(PackedSamples(folder))
            loader = stack.enter_context(closing(Loader(source, 8, shuffle=True, num_threads=num_threads)))
            ways[f"{name}, 1 MB, threads: {num_threads}"] = lambda loader=loader: read_all(loader)
        show(microseconds(ways, NUM_LARGE, rounds))


def pack(data: Path, name: str, rounds: int) -> None:
    """Measures packing of small arrays, and of the same bytes."""

    def run(source: Arrays) -> None:
        folder = data / "packed"
        shutil.rmtree(folder, ignore_errors=True)
        dlio.pack(source, folder, format=name, num_shards=1, engine="serial")

    ways: dict[str, Callable[[], None]] = {}
    for as_bytes in (True, False):
        source = Arrays(data, NUM_PACKED, SMALL, as_bytes)
        ways[f"{name}, packed as {'bytes' if as_bytes else 'arrays'}"] = lambda source=source: run(source)
    show(microseconds(ways, NUM_PACKED, rounds))


def main() -> None:
    """Runs what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["small", "large", "pack"])
    parser.add_argument("--data", type=Path, required=True, help="a folder for the packed arrays, in memory")
    parser.add_argument("--formats", default=",".join(formats.names()))
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    args.data.mkdir(parents=True, exist_ok=True)
    for name in args.formats.split(","):
        {"small": small, "large": large, "pack": pack}[args.what](args.data, name, args.rounds)


if __name__ == "__main__":
    main()
