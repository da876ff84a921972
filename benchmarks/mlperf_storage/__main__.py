"""Runs MLPerf Storage's workloads, cut short, with the DLIO benchmark's own loaders and with dlio's, in turns.

    .venv/bin/python -m benchmarks mlperf_storage --data /tmp/mlperf                                  RetinaNet
    .venv/bin/python -m benchmarks mlperf_storage --data /tmp/mlperf --workloads resnet50,unet3d,cosmoflow,flux
    .venv/bin/python -m benchmarks mlperf_storage --data /tmp/mlperf --ranks 1,2,4 --accelerators 1,8 --cold
    .venv/bin/python -m benchmarks mlperf_storage --data /tmp/mlperf --figures --epochs 2 --seconds 430 --json

The benchmark (the package dlio-benchmark 2.0.0, which `make venv` installs) generates the files itself, once; dlio
packs the JPEGs and volumes, and indexes TFRecord files in place. One rank emulates one accelerator, or several, by a
step that takes a part of its time. Figures are medians over the rounds, of all epochs but the first.

`at hand` is a loader without work: what it reaches is the most that the benchmark itself allows on the machine. With
--decode, simplejpeg and OpenCV in torch's DataLoader are the peer (`benchmarks/loaders/peers.txt`). --figures measures
what docs/performance.md shows. Of several ranks the CPU time counts their waits for one another too, in which MPI
spins.

The results are no MLPerf results: they are unofficial and not verified by MLCommons. Your own loader is of the
OPEN division; CLOSED demands data of five times the memory of the hosts, and whole sets.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from benchmarks.mlperf_storage.cases import FIGURES, Case
from benchmarks.mlperf_storage.data import generate, pack
from benchmarks.mlperf_storage.runs import FailedError, Found, Way, run
from benchmarks.mlperf_storage.workloads import WORKLOADS

COLUMNS = ["workload", "loader", "page cache", "ranks", "emulated", "AU", "passes at", "samples/s", "CPU us a sample"]
COLUMNS += ["accelerators a core"]
_OTHERS = "benchmarks.mlperf_storage.others"


def numbers(text: str) -> list[int]:
    """Returns the numbers of a list with commas."""
    return [int(each) for each in text.split(",")]


def workloads(text: str) -> list[str]:
    """Returns the names of workloads in a list with commas."""
    names = text.split(",")
    if unknown := [name for name in names if name not in WORKLOADS]:
        raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: expected names of {', '.join(WORKLOADS)}")
    return names


def arguments() -> argparse.Namespace:
    """Returns the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="a folder for the files")
    parser.add_argument("--workloads", type=workloads, default=["retinanet"], help=f"of {', '.join(WORKLOADS)}")
    parser.add_argument("--files", type=int, help="files of a data set, by default a short one's; 0 for the whole set")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--ranks", type=numbers, default=[1])
    parser.add_argument("--accelerators", type=numbers, default=[1], help="that each rank emulates")
    parser.add_argument("--threads", type=int, help="of a rank's reader, by default the workload's")
    parser.add_argument("--decode", type=int, metavar="PIXELS", help="dlio and the peer decode JPEGs and resize them")
    parser.add_argument("--cold", action="store_true", help="drop the page cache before each run, as root")
    parser.add_argument("--figures", action="store_true", help="measure what docs/performance.md shows")
    parser.add_argument(
        "--seconds", type=float, default=float("inf"), help="begin no case later; files are made before"
    )
    parser.add_argument("--prepare", action="store_true", help="only make the files")
    return parser.parse_args()


def cases(args: argparse.Namespace) -> list[Case]:
    """Returns what the command line asks for."""
    if args.figures:
        return FIGURES
    product = itertools.product(args.workloads, args.ranks, args.accelerators)
    return [Case(name, ranks, each, args.threads, args.decode, args.cold) for name, ranks, each in product]


def ways(case: Case, data: Path) -> list[Way]:
    """Returns the loaders of a case."""
    own = [Way("its own")] if case.workload.has_own_loader else []
    at_hand = [Way("at hand", f"{_OTHERS}.AtHand")] if case.ranks == 1 and not case.is_cold else []
    loader = "dlio.loaders.dlio_benchmark.DataLoader"
    if not case.decode:
        return [*at_hand, *own, Way("dlio", loader, {"DLIO_DATASET": str(pack(case.workload, data))})]
    pixels = {"DLIO_DECODE": str(case.decode)}
    made = [Way(f"simplejpeg and OpenCV, {case.decode} pixels", f"{_OTHERS}.Decoding", pixels)]
    for is_ready in (False, True):
        environment = pixels | {"DLIO_DATASET": str(pack(case.workload, data, decode_ready=is_ready))}
        name = f"dlio{', decode-ready' if is_ready else ''}, {case.decode} pixels"
        made.append(Way(name, loader, environment))
    return made


def num_files(case: Case, args: argparse.Namespace) -> int:
    """Returns the files of a case's data set."""
    return case.workload.cut if args.files is None else args.files or case.workload.num_files


def rows(case: Case, args: argparse.Namespace) -> Iterator[str]:
    """Yields a row for each loader."""
    workload, data = case.workload, args.data / case.name
    own = workload.overrides(data, data / "out", num_files(case, args), args.epochs, case.accelerators)
    found: dict[str, list[Found]] = {}
    failed: dict[str, str] = {}
    of_case = ways(case, data)
    for _, way in itertools.product(range(args.rounds), of_case):
        if case.is_cold:
            os.sync()
            Path("/proc/sys/vm/drop_caches").write_text("3")
        try:
            one = run(case.words(own), workload.batch_size, way, case.ranks)
        except FailedError as error:
            failed[way.name] = f"failed: {str(error).splitlines()[-1][:100]}"
            continue
        found.setdefault(way.name, []).append(one)
        print(f"{case}: {way.name}: {one}", file=sys.stderr, flush=True)
    cache = "cold" if case.is_cold else "warm"
    for way in of_case:
        head = f"| {case.name} | {way.name} | {cache} | {case.ranks} | {case.emulated} | "
        if way.name in failed:
            yield f"{head}{failed[way.name]} | | | | |"
            continue
        au, rate, cpu = (
            median(getattr(one, each) for one in found[way.name]) for each in ("utilization", "rate", "cpu")
        )
        fed = workload.seconds / workload.batch_size / cpu
        yield f"{head}{au:.1%} | {workload.pass_mark:.0%} | {rate:,.0f} | {cpu * 1e6:,.0f} | {fed:,.1f} |"


def main() -> None:
    """Prints the table."""
    args = arguments()
    for case in cases(args):
        generate(case.workload, args.data / case.name, num_files(case, args))
        ways(case, args.data / case.name)
    if args.prepare:
        return
    print("### MLPerf Storage's workloads, unofficial and unverified, of the OPEN kind\n")
    print("\n".join([f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|"]), flush=True)
    began = time.monotonic()
    for case in cases(args):
        if time.monotonic() - began > args.seconds:
            print(f"left out for lack of time: {case}", file=sys.stderr)
            continue
        for row in rows(case, args):
            print(row, flush=True)


if __name__ == "__main__":
    main()
