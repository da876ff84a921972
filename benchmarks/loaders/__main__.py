"""Measures dlio's loaders compared with the loaders that people use today: one run, rounds interleaved, medians.

The peers have their own environment, on top of the project's; these lines make it, once (2 GB), the second for
the libraries that FFCV and SPDL want:

    python3 -m venv peers && realpath .venv/lib/python3*/site-packages > $(echo peers/lib/python3*/site-packages)/up.pth
    apt-get install -y --no-install-recommends g++ pkg-config libopencv-dev libturbojpeg0-dev libavdevice59 libavfilter8
    peers/bin/pip install --no-deps --no-build-isolation -r benchmarks/loaders/peers.txt

Then, in the root of the project:

    .venv/bin/python -m benchmarks.loaders --peers peers/bin/python --data /tmp/loaders       all: about 12 minutes
    .venv/bin/python -m benchmarks.loaders ... --tasks png --only dlio,dali --rounds 1

The first run also makes the images (from photographs in scikit-learn and scikit-image) and writes them in each peer's
format. Each way runs in its own process in each round, on two cores: a third of its batches to get going, the
rest is measured. CPU time is that of the process and its children and says most on a machine that has other work;
memory is what is private to them or shared between them, without mapped files.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

from benchmarks.loaders.processes import Failure, run_child
from benchmarks.loaders.table import CROP_READY, DLIO, Figures, targets, task_table
from benchmarks.loaders.tasks import NUM_WORKERS, TASKS, Way, all_ways


def arguments() -> argparse.Namespace:
    """Returns the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", default=sys.executable, help="the Python of the peers' environment")
    parser.add_argument("--data", type=Path, required=True, help="a folder for the images; 8 GB")
    parser.add_argument("--tasks", type=lambda text: text.split(","), default=list(TASKS), help=", ".join(TASKS))
    parser.add_argument("--only", type=lambda text: text.split(","), help="parts of the modules' names in ways/")
    parser.add_argument("--rounds", type=int, default=3)
    return parser.parse_args()


class Bench:
    """The ways chosen, their data, and what was measured."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.ways = {
            name: way for name, way in all_ways().items() if not args.only or any(word in name for word in args.only)
        }
        self.runs: dict[str, dict[str, list[dict[str, Any]]]] = {task: defaultdict(list) for task in args.tasks}
        self.failures: dict[str, dict[str, Failure]] = {task: {} for task in args.tasks}

    def python(self, name: str) -> str:
        """Returns the interpreter that has the packages of a way."""
        return sys.executable if name.startswith("dlio") else self.args.peers

    def data(self, way: Way, images: str) -> Path:
        """Returns where a set lies as the way reads it; ways that prepare alike share it."""
        return Path(self.args.data) / "prepared" / images / way.prepare.__module__.rpartition(".")[2]

    def prepare(self) -> None:
        """Makes what is not there yet of the images and the ways' data."""
        renewed = set()
        for images in sorted({TASKS[task].data for task in self.args.tasks}):
            _must(run_child(self.args.peers, "images", images, self.args.data))
            for name, way in self.ways.items():
                tasks = [task for task in self.args.tasks if task in way.TASKS and TASKS[task].data == images]
                out = self.data(way, images)
                is_own = name.startswith("dlio")  # its files are as new as its code
                if not tasks or out in renewed or (out.exists() and not is_own):
                    continue
                renewed.add(out)
                made = run_child(self.python(name), "prepare", name, self.args.data / images / "all", out)
                if isinstance(made, Failure):
                    self.failures |= {task: self.failures[task] | {way.NAME: made} for task in tasks}

    def round(self) -> None:
        """Runs every way once in every task."""
        for task in self.args.tasks:
            for name, way in self.ways.items():
                if task in way.TASKS and way.NAME not in self.failures[task]:
                    found = run_child(self.python(name), "run", name, task, self.data(way, TASKS[task].data))
                    if isinstance(found, Failure):
                        self.failures[task][way.NAME] = found
                    else:
                        self.runs[task][way.NAME].append(found)
                        print(f"{task}: {way.NAME}: {found['cpu'] * 1e6:,.1f} us", file=sys.stderr, flush=True)

    def rank(self) -> dict[str, Any]:
        """Returns what one rank of dlio gives besides speed, where both ways of dlio are measured."""
        names = {way.NAME: way for way in self.ways.values()}
        if "jpeg" not in self.args.tasks or not {DLIO, CROP_READY} <= names.keys():
            return {}
        folders = [self.data(names[name], "big") for name in (DLIO, CROP_READY)]
        return _must(run_child(sys.executable, "rank", *folders))

    def report(self) -> str:
        """Returns the tables."""
        tables = {
            task: {name: Figures.of(runs) for name, runs in found.items() if name not in self.failures[task]}
            for task, found in self.runs.items()
        }
        parts = [task_table(TASKS[task], found, self.failures[task]) for task, found in tables.items()]
        return "\n".join([*parts, targets(tables, self.rank())])


def _must(made: dict[str, Any] | Failure) -> dict[str, Any]:
    if isinstance(made, Failure):
        raise SystemExit(made.reason)
    return made


def main() -> None:
    """Prints the tables."""
    bench = Bench(arguments())
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:NUM_WORKERS])
    bench.prepare()
    for _ in range(bench.args.rounds):
        bench.round()
    print(bench.report())


if __name__ == "__main__":
    main()
