"""Runs MLPerf Storage's workloads, cut short, with the DLIO benchmark's own loaders and with dlio's, in turns.

    .venv/bin/python -m benchmarks mlperf_storage --data /tmp/mlperf                                  RetinaNet
    .venv/bin/python -m benchmarks mlperf_storage --data /tmp/mlperf --workloads resnet50,cosmoflow
    .venv/bin/python -m benchmarks mlperf_storage --data /tmp/mlperf --ranks 2 --accelerators 8 --cold

The benchmark (the package dlio-benchmark 2.0.0, which `make venv` installs) generates the files itself, once; dlio
packs the JPEGs and volumes, and indexes TFRecord files as they are. One rank emulates one accelerator, or several, by a
step that takes a part of its time. Figures are medians over the rounds, of all epochs but the first.

The results are no MLPerf results: they are unofficial and not verified by MLCommons. A loader of one's own is of the
OPEN division; CLOSED demands data of five times the memory of the hosts, and whole sets.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from benchmarks.mlperf_storage.runs import FailedError, Found, generate, pack, run
from benchmarks.mlperf_storage.workloads import WORKLOADS

COLUMNS = ["workload", "loader", "ranks", "emulated", "AU", "passes at", "samples/s", "CPU us a sample"]


def arguments() -> argparse.Namespace:
    """Returns the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="a folder for the files")
    parser.add_argument("--workloads", type=lambda text: text.split(","), default=["retinanet"])
    parser.add_argument("--files", type=int, help="files of a data set, by default a short one's; 0 for the whole set")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--accelerators", type=int, default=1, help="that each rank emulates")
    parser.add_argument("--threads", type=int, help="of a rank's reader, by default the workload's")
    parser.add_argument("--decode", type=int, metavar="PIXELS", help="dlio decodes JPEGs and resizes them")
    parser.add_argument("--cold", action="store_true", help="drop the page cache before each run, as root")
    return parser.parse_args()


def rows(name: str, args: argparse.Namespace) -> Iterator[str]:
    """Yields a row for each loader."""
    workload, data = WORKLOADS[name], args.data / name
    num_files = workload.cut if args.files is None else args.files or workload.num_files
    data.mkdir(parents=True, exist_ok=True)
    generate(workload, data, num_files)
    packed = pack(workload, data)
    words = workload.overrides(data, data / "out", num_files, args.epochs, args.accelerators)
    if args.threads is not None:
        words.append(f"++workload.reader.read_threads={args.threads}")
    found: dict[str, list[Found] | str] = {"its own": [], "dlio": []}
    for _ in range(args.rounds):
        for loader, runs in found.items():
            if args.cold:
                os.sync()
                Path("/proc/sys/vm/drop_caches").write_text("3")
            try:
                one = run(words, int(str(workload.reader["batch_size"])), packed if loader == "dlio" else None,
                          args.ranks, args.decode if loader == "dlio" else None)  # fmt: skip
            except FailedError as error:
                found[loader] = f"failed: {str(error).splitlines()[-1][:100]}"
                continue
            if isinstance(runs, list):
                runs.append(one)
            print(f"{name}: {loader}: {one}", file=sys.stderr, flush=True)
    emulated = f"{args.ranks * args.accelerators} {workload.accelerator}"
    for loader, runs in found.items():
        if isinstance(runs, str):
            yield f"| {name} | {loader} | {args.ranks} | {emulated} | {runs} | | | |"
            continue
        au, rate, cpu = (median(getattr(one, each) for one in runs) for each in ("utilization", "rate", "cpu"))
        figures = f"{au:.1%} | {workload.pass_mark:.0%} | {rate:,.0f} | {cpu * 1e6:,.0f}"
        done = f"{loader}, resized to {args.decode}" if args.decode and loader == "dlio" else loader
        yield f"| {name} | {done} | {args.ranks} | {emulated} | {figures} |"


def main() -> None:
    """Prints the table."""
    args = arguments()
    lines = [row for name in args.workloads for row in rows(name, args)]
    where = "page cache dropped before each run" if args.cold else "page cache warm"
    print(f"### MLPerf Storage's workloads, unofficial and unverified, of the OPEN kind; {where}\n")
    print("\n".join([f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|", *lines]))


if __name__ == "__main__":
    main()
