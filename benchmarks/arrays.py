"""Arrays, and the same bytes as encoded images: packed and loaded in every format, in CPU microseconds a sample.

    python benchmarks/arrays.py /var/tmp/arrays [--formats tfrecord,lmdb]        reads from /dev/shm take longer

Packing: arrays uint8[32,32,3] with a label, made in memory, into one shard, and the same bytes as `image: bytes`.
Loading: these arrays, shuffled, in batches of 256, unchanged and by `RandomCrop(32, padding=4, flip=True)`, by the
consumer's thread and by one of the loader's; then 400 arrays float32[512,512] in batches of 8, and a loop that copies
them out of a mapped file. Least of five epochs, or of three packings.
"""

from __future__ import annotations

import argparse
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import dlio
from dlio import formats
from dlio.dataset.schema import Sample, Schema
from dlio.images import RandomCrop
from dlio.loaders.dataset import PackedSamples
from dlio.loaders.loader import ArrayBatches, Loader
from dlio.pack.listing.base import Listing
from dlio.pack.listing.keys import Keys

SMALL, LARGE = 20_480, 400
NUM_DIFFERENT = 16


@dataclass(frozen=True, slots=True)
class Arrays:
    """A source of random arrays, or of their bytes; each has a label."""

    count: int
    kind: str
    as_bytes: bool = False
    name: str = "arrays"
    path: str = "memory"

    def listing(self) -> Listing:
        """Returns the samples' numbers."""
        schema = Schema.of({"image": "bytes" if self.as_bytes else self.kind, "label": "int64"})
        numbers = np.arange(self.count)
        size = Schema.of({"image": self.kind, "label": "int64"})["image"].fixed_bytes
        keys = Keys.of(f"{number:07d}" for number in numbers)
        columns = {"label": numbers % 10, "number": numbers}
        return Listing(schema, keys, np.full(self.count, size), columns, (), versions=np.zeros(self.count, np.int64))

    @contextmanager
    def reader(self, listing: Listing) -> Iterator[Callable[[int], Sample]]:
        """Gives a function that returns a sample."""
        kind, random = Schema.of({"image": self.kind, "label": "int64"})["image"], np.random.default_rng(0)
        arrays = [random.integers(0, 255, kind.fixed_shape).astype(kind.dtype) for _ in range(NUM_DIFFERENT)]
        values = [array.tobytes() for array in arrays] if self.as_bytes else arrays

        def read(index: int) -> Sample:
            number = int(listing.columns["number"][index])
            fields = {"image": values[number % NUM_DIFFERENT], "label": int(listing.columns["label"][index])}
            return Sample(listing.keys[index], fields)

        yield read


def seconds(work: Callable[[], object], rounds: int) -> float:
    """Returns the least CPU time of several rounds."""
    found = []
    for _ in range(rounds):
        began = time.process_time()
        work()
        found.append(time.process_time() - began)
    return min(found)


def pack(source: Arrays, out: Path, name: str) -> float:
    """Packs, and returns the CPU microseconds a sample."""

    def work() -> None:
        shutil.rmtree(out, ignore_errors=True)
        dlio.pack(source, out, format=name, num_shards=1, engine="serial")

    return seconds(work, 3) / source.count * 1e6


def load(folder: Path, count: int, batch_size: int, num_threads: int, transform: RandomCrop | None = None) -> float:
    """Returns the CPU microseconds of loading a sample."""
    samples = PackedSamples(folder, transform)
    loader = Loader(ArrayBatches(samples), batch_size, shuffle=True, num_workers=num_threads, end="drop")
    try:
        return seconds(lambda: [None for _ in loader], 5) / count * 1e6
    finally:
        loader.close()


def copied_from_a_mapped_file(path: Path) -> float:
    """Returns the CPU microseconds of copying an array of a megabyte, of LARGE in random order."""
    np.random.default_rng(0).random((LARGE, 512, 512), np.float32).tofile(path)
    mapped = np.memmap(path, np.float32, "r", shape=(LARGE, 512, 512))
    batch, order = np.empty((8, 512, 512), np.float32), np.random.default_rng(1).permutation(LARGE)

    def work() -> None:
        for at, number in enumerate(order.tolist()):
            batch[at % 8] = mapped[number]

    return seconds(work, 5) / LARGE * 1e6


def main() -> None:
    """Prints a line for each format."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--formats", type=lambda text: text.split(","), default=formats.names())
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    print(f"1 MB, copied out of a mapped file: {copied_from_a_mapped_file(options.folder / 'mapped'):.0f} us")
    print("| format | packed | / bytes | loaded, no thread, one | crop and flip | 1 MB |\n|---|---|---|---|---|---|")
    for name in options.formats:
        folder, kind = options.folder / name, "uint8[32,32,3]"
        packed = {form: pack(Arrays(SMALL, kind, form), folder, name) for form in (True, False)}
        plain, cropped = (
            ", ".join(f"{load(folder, SMALL, 256, threads, transform):.2f}" for threads in (0, 1))
            for transform in (None, RandomCrop(32, padding=4, flip=True))
        )
        pack(Arrays(LARGE, "float32[512,512]"), folder, name)
        large = ", ".join(f"{load(folder, LARGE, 8, threads):.0f}" for threads in (0, 1))
        ratio = packed[False] / packed[True]
        print(f"| {name} | {packed[False]:.1f} us | {ratio:.2f} | {plain} us | {cropped} us | {large} us |", flush=True)


if __name__ == "__main__":
    main()
