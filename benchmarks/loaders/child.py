"""One process of the benchmark: prepares a way's data, or runs it and prints what it took as one JSON object.

python -m benchmarks.loaders.child prepare WAY IMAGES OUT
python -m benchmarks.loaders.child run WAY TASK DATA
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import shutil
import sys
import time
import warnings
from itertools import islice
from pathlib import Path
from typing import Any

from benchmarks.images import make_set
from benchmarks.loaders import rank
from benchmarks.loaders.process_tree import cpu_seconds
from benchmarks.loaders.tasks import BATCH_SIZE, TASKS, Task, Way, load_way


def prepare(way: Way, images: Path, out: Path) -> None:
    """Writes the images as the way reads them; `out` appears when all is written."""
    aside = out.with_name(f"{out.name}.partial")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    way.prepare(images, aside)
    shutil.rmtree(out, ignore_errors=True)
    aside.rename(out)


def check(batch: Any, task: Task) -> None:
    """Ends the process if a batch is not what was asked for."""
    if task.pixels is None:
        good = len(batch) == BATCH_SIZE and min(map(len, batch)) > 1000
    else:
        good = batch.shape[0] == BATCH_SIZE and batch.nbytes == task.batch_bytes
    if not good:
        raise SystemExit("the first batch is not what was asked for")


def run(way: Way, task: Task, data: Path) -> dict[str, Any]:
    """Returns what the way took: seconds to the first batch, and of CPU and clock for an image of the steady run."""
    began = time.perf_counter()
    batches = iter(way.batches(data, task))
    check(next(batches), task)
    first = time.perf_counter() - began
    count = task.warm_up // BATCH_SIZE
    _skip(batches, count - 1)
    middle = time.perf_counter(), cpu_seconds()
    _skip(batches, 2 * count)
    end = time.perf_counter(), cpu_seconds()
    wall, cpu = (after - before for after, before in zip(end, middle, strict=True))
    images = 2 * count * BATCH_SIZE
    package = next(iter(way.PACKAGES.values()))
    version = f"{package} {importlib.metadata.version(package)}"
    return {"first": first, "wall": wall / images, "cpu": cpu / images, "version": version}


def _skip(batches: Any, count: int) -> None:
    if sum(1 for _ in islice(batches, count)) < count:
        raise SystemExit("the way ended early")


def main() -> None:
    """Does what the command line asks for."""
    warnings.simplefilter("ignore")
    verb, name, *words = sys.argv[1:]
    if verb == "images":
        make_set(Path(words[0]), name)
    elif verb == "rank":
        print(json.dumps(rank.measure(Path(name), Path(words[0]))), flush=True)
    else:
        way = load_way(name)
        for package in way.PACKAGES:
            importlib.import_module(package)
        if verb == "prepare":
            prepare(way, Path(words[0]), Path(words[1]))
        else:
            print(json.dumps(run(way, TASKS[words[0]], Path(words[1]))), flush=True)


if __name__ == "__main__":
    main()
