"""Measures what the plan of a large pack takes on the root: peak memory and seconds, for 1, 2, 5 and 10 million names.

    python tools/bench/plan_memory.py

The names are those of ImageNet's layout, made up, so that no such number of files need exist; everything else is what
`dlio pack` does: keys, labels, sizes, shuffle, shards, and the digest of the plan.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dlio.pack.keys import Keys
from dlio.pack.listing import Listing
from dlio.pack.run import make_plan
from dlio.sample import IMAGE_CLASSIFICATION


@dataclass(frozen=True)
class MadeUp:
    """A source of `count` names in 1,000 classes."""

    count: int
    name: str = "made-up"
    path: Path = Path("/made-up")

    def listing(self) -> Listing:
        """Returns the names, with labels, and sizes of 110 KB on average."""
        keys = Keys.of(f"n{i * 1000 // self.count:08d}/n{i:08d}_{i % 9973}.JPEG" for i in range(self.count))
        keys.check_distinct(self.path)
        labels = np.arange(self.count) * 1000 // self.count
        sizes = np.random.default_rng(0).integers(20_000, 200_000, self.count)
        return Listing(IMAGE_CLASSIFICATION, keys, sizes, {"label": labels})


def main() -> None:
    """Prints a line for each number of files; each is planned in a process of its own."""
    if len(sys.argv) == 2:
        before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.perf_counter()
        plan = make_plan(MadeUp(int(sys.argv[1])), format="tfrecord", seed=0, shard_bytes=256 << 20)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        seconds = time.perf_counter() - began
        sizes = f"{peak / 1e6:10.2f} {(peak - before) / 1e6:12.2f}"
        print(f"{len(plan.listing):12,} {len(plan.shards):8,} {sizes} {seconds:8.1f}")
        return
    print(f"{'files':>12} {'shards':>8} {'peak, GB':>10} {'of the plan':>12} {'seconds':>8}")
    for millions in (1, 2, 5, 10):
        subprocess.run([sys.executable, __file__, str(millions * 1_000_000)], check=True)


if __name__ == "__main__":
    main()
