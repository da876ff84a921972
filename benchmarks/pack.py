"""Measures packing: rates against `tar cf` and the ecosystems' own packers, re-encoding, start, and memory.

    python benchmarks/pack.py --data /tmp/bench --out /dev/shm/bench            about six minutes on two quiet cores
    python benchmarks/pack.py --data /tmp/bench --out /mnt/disk/bench --sync    all of it waits for the disk
    python benchmarks/pack.py ... --tables big,small --only tar,recordio --rounds 3

`images.py` makes the sets `big` and `small`, and tells what is in them. Every way runs in its own process, on a
twelfth of a set and on all of it; its rate is that of the difference, so that process start drops out. All ways take
their turn in each round; the figures are medians over the rounds, a ratio that of each round. `whole run` has the start
in it, and `x peer` compares it with that of the format's own packer. Where other work runs on the cores, the CPU time
of an image tells more than a rate. Everything is read from the page cache; dlio has two workers.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
from images import SETS, make_set
from numpy.typing import NDArray
from pack_peers import PEERS, QUALITY, SHORTER_EDGE, installed

FORMATS = ("recordio", "webdataset", "tfrecord", "lmdb", "hdf5", "squashfs")
TABLES = ("big", "small", "encode", "start", "memory")
Run = Callable[[Path, Path], None]


def run_tar(root: Path, out: Path) -> None:
    """Packs with GNU tar."""
    subprocess.run(["tar", "cf", str(out), "-C", str(root), "."], check=True)


def run_mksquashfs(*options: str) -> Run:
    """Returns the run of mksquashfs, nothing compressed, with as many processors."""
    stored = ("-noI", "-noD", "-noF", "-noX", "-no-fragments", "-processors", "2", *options)

    def run(root: Path, out: Path) -> None:
        subprocess.run(["mksquashfs", str(root), str(out), "-quiet", "-no-progress", *stored], check=True)

    return run


def command(root: Path, out: Path, name: str, *options: str) -> list[str]:
    """Returns the command that packs with dlio, into eight shards so that both workers have equal work."""
    words = ["pack", str(root), str(out), "--format", name, "--workers", "2", "--num-shards", "8", "--quiet"]
    return [sys.executable, "-m", "dlio", *words, *options]


def run_dlio(name: str, *options: str) -> Run:
    """Returns the run of `dlio pack` into a format."""

    def run(root: Path, out: Path) -> None:
        subprocess.run(command(root, out, name, *options), check=True)

    return run


def run_peer(name: str) -> Run:
    """Returns the run of one of the peers."""
    script = Path(__file__).with_name("pack_peers.py")

    def run(root: Path, out: Path) -> None:
        subprocess.run([sys.executable, script, name, root, out], check=True)

    return run


def seconds(run: Run, root: Path, out: Path, sync: bool) -> NDArray[np.float64]:
    """Returns how long a run takes, its output on the disk where `sync` asks for it, and the CPU time of it all."""
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    run(root, out / "packed")
    if sync:
        subprocess.run(["sync", "-f", str(out)], check=True)
    took, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    shutil.rmtree(out)
    return np.array([took, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime])


def measure(ways: dict[str, Run], name: str, args: argparse.Namespace) -> dict[str, NDArray[np.float64]]:
    """Returns of each way, for each round, seconds and CPU seconds on a twelfth of a set, then on all of it."""
    root = make_set(args.data, name)
    found: dict[str, list[NDArray[np.float64]]] = {way: [] for way in ways}
    for _ in range(args.rounds):
        for way, run in ways.items():
            times = [seconds(run, root / part, args.out, args.sync) for part in ("part", "all")]
            found[way].append(np.concatenate(times))
    return {way: np.array(rounds) for way, rounds in found.items()}


def print_rates(title: str, found: dict[str, NDArray[np.float64]], count: int, base: str) -> None:
    """Prints the rate of each way, compared with that of `base` and the whole run of its format's own packer."""
    heads = ["way", "images/s", f"x {base}", "CPU us an image", "whole run, s", "start, s", "x peer"]
    print(f"\n### Packing: {title}\n\n| {' | '.join(heads)} |\n{'|---' * len(heads)}|")
    each = {way: (times[:, 2:] - times[:, :2]) / (count * 11 / 12) for way, times in found.items()}
    for way, slopes in each.items():
        rate, cpu = 1 / np.median(slopes[:, 0]), np.median(slopes[:, 1]) * 1e6
        ratio = np.median(each[base][:, 0] / slopes[:, 0]) if base in each else np.nan
        whole = np.median(found[way][:, 2])
        peers = found.get(way.replace("dlio", "peer")) if way.startswith("dlio") else None
        to_peer = "" if peers is None else f"{np.median(peers[:, 2] / found[way][:, 2]):.1f}"
        times = f"{whole:.2f} | {whole - count / rate:.2f} | {to_peer}"
        print(f"| {way} | {rate:,.0f} | {ratio:.2f} | {cpu:.1f} | {times} |")


def rates(name: str, args: argparse.Namespace) -> None:
    """Prints the table of a set, whose files are packed unchanged."""
    ways = {"tar": run_tar} | {f"dlio {kind}": run_dlio(kind) for kind in FORMATS}
    ways |= {f"peer {kind}": run_peer(kind) for kind in FORMATS if kind in installed()}
    if shutil.which("mksquashfs"):
        ways |= {"peer squashfs": run_mksquashfs(), "squashfs -no-duplicates": run_mksquashfs("-no-duplicates")}
    chosen = {way: run for way, run in ways.items() if not args.only or any(word in way for word in args.only)}
    print_rates(name, measure(chosen, name, args), SETS[name][0], "tar")


def encode(args: argparse.Namespace) -> None:
    """Prints the table of images that are made smaller."""
    peers = {"peer recordio": "im2rec", "peer alone": "im2rec_alone"}
    ways = {way: run_peer(name) for way, name in peers.items() if name in installed()}
    options = ("--resize", str(SHORTER_EDGE), "--quality", str(QUALITY))
    found = measure(ways | {"dlio recordio": run_dlio("recordio", *options)}, "big", args)
    print_rates(" ".join(["big", *options]), found, SETS["big"][0], "peer recordio")


def start(args: argparse.Namespace) -> None:
    """Prints the time from the command typed to the first byte written."""
    root = make_set(args.data, "big") / "all"
    print("\n| dlio pack | first byte after, s |\n|---|---|")
    for name in FORMATS:
        print(f"| {name} | {np.median([_first_byte(root, args.out, name) for _ in range(args.rounds)]):.2f} |")


def _first_byte(root: Path, out: Path, name: str) -> float:
    shutil.rmtree(out, ignore_errors=True)
    began = time.perf_counter()
    with subprocess.Popen(command(root, out / "packed", name)) as process:
        while not _has_bytes(out) and process.poll() is None:
            time.sleep(0.001)
        took = time.perf_counter() - began
    shutil.rmtree(out)
    return took


def _has_bytes(folder: Path) -> bool:
    """Tells whether a shard's file holds anything."""
    for above, _, names in os.walk(folder):
        for name in names:
            with suppress(FileNotFoundError):  # renamed or removed since
                if "shard-" in above + name and Path(above, name).stat().st_size:
                    return True
    return False


def memory(args: argparse.Namespace) -> None:
    """Prints what a worker uses in addition to its imports, packing all of a set into two shards in its own process."""
    print("\n| worker | imports, MB | peak above them, MB |\n|---|---|---|")
    for name in FORMATS:
        shutil.rmtree(args.out, ignore_errors=True)
        words = [sys.executable, __file__, "--worker", name, make_set(args.data, "big") / "all", args.out]
        print(subprocess.run(words, check=True, capture_output=True, text=True).stdout, end="")
        shutil.rmtree(args.out)


def worker(name: str, root: Path, out: Path) -> None:
    """Packs in this process and prints its line of the table of memory."""
    from dlio import pack
    from dlio.sources import image_folder

    first = next(root.rglob("*.jpg"))
    few = out / "few" / first.parent.name
    few.mkdir(parents=True)
    shutil.copy(first, few)
    pack(image_folder(out / "few"), out / "packed-few", format=name, engine="serial")
    before = _memory("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak from here on (proc(5))
    pack(image_folder(root), out / "packed", format=name, num_shards=2, engine="serial")
    print(f"| {name} | {before:.0f} | {_memory('VmHWM') - before:.0f} |")


def _memory(kind: str) -> float:
    """Returns a line of this process's status, in MB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1000 for line in lines if line.startswith(kind))


def main() -> None:
    """Prints the tables asked for."""
    if sys.argv[1:2] == ["--worker"]:
        worker(sys.argv[2], Path(sys.argv[3]), Path(sys.argv[4]))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="the folder to make the image sets in")
    parser.add_argument("--out", type=Path, required=True, help="the folder to pack into, on tmpfs or on a disk")
    parser.add_argument("--tables", type=lambda text: text.split(","), default=TABLES, help=f"of {', '.join(TABLES)}")
    parser.add_argument("--only", type=lambda text: text.split(","), help="parts of the names of ways")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sync", action="store_true", help="wait for the disk")
    args = parser.parse_args()
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # the modules of an installed package are compiled
    for name in sorted(set(PEERS) - installed()):
        print(f"left out: {name}, which needs the package {PEERS[name][1]}")
    others = {"encode": encode, "start": start, "memory": memory}
    for table in args.tables:
        others[table](args) if table in others else rates(table, args)


if __name__ == "__main__":
    main()
