"""Measures what the plan of a large pack takes on the root: peak memory and seconds, for 1, 2, 5 and 10 million names.

    python benchmarks/plan_memory.py                             of a folder's files
    python benchmarks/plan_memory.py --lists                     of those that CSV files and other lists name

The names are those of ImageNet's layout, made up, so that no such number of files need exist; everything else is what
`dlio pack` does: keys, labels, sizes, shuffle, shards, and the digest of the plan. Lists are written to the folder for
temporary files, 40 bytes an image.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from dlio.dataset.schema import IMAGE_CLASSIFICATION
from dlio.pack.listing.base import Listing, Source
from dlio.pack.listing.keys import Keys
from dlio.pack.request import PackRequest, make_plan
from dlio.pack.sources import open_source


@dataclass(frozen=True)
class MadeUp:
    """A source of `count` names in 1,000 classes."""

    count: int
    name: str = "made-up"
    path: Path = Path("/made-up")

    def names(self) -> Iterator[tuple[str, int]]:
        """Yields names and labels."""
        labels = (number * 1000 // self.count for number in range(self.count))
        return ((f"n{label:08d}/n{number:08d}_{number % 9973}.JPEG", label) for number, label in enumerate(labels))

    def listing(self) -> Listing:
        """Returns the names, with labels, and sizes of 110 KB on average."""
        keys = Keys.of(name for name, _ in self.names())
        keys.check_distinct(self.path)
        labels = np.arange(self.count) * 1000 // self.count
        sizes = np.random.default_rng(0).integers(20_000, 200_000, self.count)
        return Listing(IMAGE_CLASSIFICATION, keys, sizes, {"label": labels})


#: The lines of the lists: the first, and that of an image, given its number, name and label.
LISTS: dict[str, tuple[str, str]] = {
    ".csv": ("path,label\n", "{1},{2}\n"),
    ".lst": ("", "{0}\t{2}\t{1}\n"),
    ".txt": ("", "{1} {2}\n"),
}


def source_of(kind: str, count: int, folder: str) -> Source:
    """Returns the source of a kind: a made-up folder, or a list, which is written to `folder`."""
    if kind == "folder":
        return MadeUp(count)
    path, (first, line) = Path(folder, f"list{kind}"), LISTS[kind]
    with path.open("w") as file:
        file.write(first)
        file.writelines(line.format(number, *named) for number, named in enumerate(MadeUp(count).names()))
    return open_source(path)


def measure(kind: str, count: int) -> None:
    """Prints the line of `count` files, planned in this process."""
    with TemporaryDirectory() as folder:
        source = source_of(kind, count, folder)
        before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.perf_counter()
        plan = make_plan(source, PackRequest("tfrecord", shard_bytes=256 << 20, seed=0))
    peak, seconds = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.perf_counter() - began
    sizes = f"{peak / 1e6:10.2f} {(peak - before) / 1e6:12.2f}"
    print(f"{kind:>8} {len(plan.listing):12,} {len(plan.shards):8,} {sizes} {seconds:8.1f}")


def main() -> None:
    """Prints a line for each number of files; each is planned in its own process."""
    if len(sys.argv) == 3:
        measure(sys.argv[1], int(sys.argv[2]))
        return
    print(f"{'source':>8} {'files':>12} {'shards':>8} {'peak, GB':>10} {'of the plan':>12} {'seconds':>8}")
    for kind in LISTS if sys.argv[1:] == ["--lists"] else ["folder"]:
        for millions in (1, 2, 5, 10):
            subprocess.run([sys.executable, __file__, kind, str(millions * 1_000_000)], check=True)


if __name__ == "__main__":
    main()
