"""Measures packing from storage that answers late: `dlio pack` compared with tar, webdataset, a loop of 64 threads.

    python benchmarks/slow_pack.py --data /tmp/bench --out /dev/shm/bench --latencies 0,1,5,20 --rounds 3

`images.py` makes the set `big`; `slow_files.c`, which needs cc and libfuse3-dev, mounts it again for each run, so that
nothing of it is cached. The latency is what a look-up, an open, a listing and a read take. The ways take their turn in
each round; the figures are medians. Rates are those between a twelfth of the set and all of it, so that the start drops
out; `whole run` has it in it. The bare loop has the names given, opens, reads and closes; dlio, with two workers, lists
the folders and stats the files too, and writes RecordIO; `tar` and webdataset's writer have
the twelfth only, since they take so long. `--slow-out` packs to a disk with an fsync of 20 ms and 100 MB/s instead.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
from images import make_set
from webdataset import TarWriter

SERVER = Path(__file__).with_name("slow_files.c")
PARTS = ("part", "all")
Run = Callable[[Path, Path], None]
SERVER_THREADS, LOOP_THREADS = 256, 64


def build(folder: Path) -> Path:
    """Returns the compiled server."""
    flags = subprocess.run(["pkg-config", "--cflags", "--libs", "fuse3"], check=True, capture_output=True, text=True)
    program = folder / "slow_files"
    subprocess.run(["cc", "-O2", "-rdynamic", SERVER, "-o", program, *flags.stdout.split()], check=True)
    return program


@contextmanager
def mounted(program: Path, folder: Path, at: Path, latency_ms: float, sync_ms: float, rate: float) -> Iterator[Path]:
    """Gives a slow view of a folder."""
    at.mkdir(parents=True, exist_ok=True)
    latency = str(round(latency_ms * 1000))
    words = [program, folder, at, latency, latency, str(round(sync_ms * 1000)), str(rate), str(SERVER_THREADS)]
    with subprocess.Popen(words) as server:
        while not at.is_mount():
            if server.poll() is not None:
                raise SystemExit("FUSE cannot be mounted here")
            time.sleep(0.01)
        yield at
        subprocess.run(["umount", "--lazy", at], check=True)
        server.wait()


def bare_loop(names: list[str], root: Path, out: Path) -> None:
    """Opens, reads and closes the files by threads."""

    def read(name: str) -> None:
        descriptor = os.open(root / name, os.O_RDONLY)
        os.read(descriptor, 1 << 20)
        os.close(descriptor)

    with ThreadPoolExecutor(LOOP_THREADS) as threads:
        list(threads.map(read, names))


def tar(root: Path, out: Path) -> None:
    """Packs with GNU tar."""
    subprocess.run(["tar", "cf", str(out), "-C", str(root), "."], check=True)


def webdataset(root: Path, out: Path) -> None:
    """Packs with webdataset's own writer."""
    with TarWriter(str(out)) as shard:
        for path in root.rglob("*.jpg"):
            shard.write({"__key__": str(path.relative_to(root).with_suffix("")), "jpg": path.read_bytes()})


def dlio(root: Path, out: Path, *options: str) -> None:
    """Packs with dlio."""
    words = ["--source", "imagefolder", "--format", "recordio", "--num-shards", "8", "--workers", "2", "--quiet"]
    subprocess.run([sys.executable, "-m", "dlio", "pack", str(root), str(out), *words, *options], check=True)


def dry(root: Path, out: Path) -> None:
    """Plans."""
    dlio(root, out, "--dry-run")


def seconds(run: Run, root: Path, out: Path) -> float:
    """Returns how long a run takes."""
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    began = time.perf_counter()
    run(root, out / "packed")
    took = time.perf_counter() - began
    shutil.rmtree(out)
    return took


def read_table(args: argparse.Namespace, program: Path) -> None:
    """Prints the rates of each way at each latency."""
    root = make_set(args.data, "big")
    names = {
        part: sorted(str(path.relative_to(root / part)) for path in (root / part).rglob("*.jpg")) for part in PARTS
    }
    ways: dict[str, tuple[Run, str]] = {f"plan {part}": (dry, part) for part in PARTS}
    ways |= {f"dlio {part}": (dlio, part) for part in PARTS}
    ways |= {f"loop {part}": (partial(bare_loop, names[part]), part) for part in PARTS}
    ways |= {"tar part": (tar, "part"), "webdataset part": (webdataset, "part")}
    heads = "latency, ms | bare loop, files/s | dlio | dlio / loop | whole run / loop | plan, s | tar | dlio / tar"
    print(f"\n| {heads} | webdataset |\n{'|---' * 9}|")
    for latency in args.latencies:
        found: dict[str, list[float]] = {way: [] for way in ways}
        for _ in range(args.rounds):
            for way, (run, part) in ways.items():
                with mounted(program, root / part, args.mount, latency, 0, 0) as source:
                    found[way].append(seconds(run, source, args.out))
        took = {way: np.array(times) for way, times in found.items()}
        count = len(names["all"]) - len(names["part"])
        loop, ours = ((took[f"{way} all"] - took[f"{way} part"]) / count for way in ("loop", "dlio"))
        tarred, written = (np.median(took[f"{way} part"]) / len(names["part"]) for way in ("tar", "webdataset"))
        cells = [f"{1 / np.median(each):,.0f}" for each in (loop, ours)]
        cells += [f"{np.median(each):.2f}" for each in (loop / ours, took["loop all"] / took["dlio all"])]
        cells += [f"{np.median(took['plan all']):.2f}", f"{1 / tarred:,.0f}", f"{tarred / np.median(ours):.1f}"]
        cells += [f"{1 / written:,.0f}"]
        print(f"| {latency:g} | {' | '.join(cells)} |", flush=True)


def write_table(args: argparse.Namespace, program: Path) -> None:
    """Prints how long it takes to read slowly, to write slowly, and both."""
    root = make_set(args.data, "big") / "all"
    (args.data / "slow-out").mkdir(exist_ok=True)
    print("\n| source | output | s |\n|---|---|---|")
    for latency, sync in ((5, 0), (0, 20), (5, 20)):
        took = []
        for _ in range(args.rounds):
            with (
                mounted(program, root, args.mount, latency, 0, 0) as source,
                mounted(program, args.data / "slow-out", args.mount.with_suffix(".out"), 0, sync, sync * 5) as out,
            ):
                took.append(seconds(dlio, source, out / "run"))
        print(
            f"| {latency} ms | fsync {sync} ms, {sync * 5 or 'no bound of'} MB/s | {np.median(took):.2f} |", flush=True
        )


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="the folder to make the image set in")
    parser.add_argument("--out", type=Path, required=True, help="the folder to pack into")
    parser.add_argument("--mount", type=Path, default=Path("/tmp/dlio-slow"), help="where to mount")
    parser.add_argument(
        "--latencies", type=lambda text: [float(word) for word in text.split(",")], default=[0, 1, 5, 20]
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--slow-out", action="store_true")
    args = parser.parse_args()
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    tar_version = subprocess.run(["tar", "--version"], capture_output=True, text=True).stdout.splitlines()[0]
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.0f}, Linux {platform.release()}, {tar_version}")
    args.data.mkdir(parents=True, exist_ok=True)
    program = build(args.data)
    (write_table if args.slow_out else read_table)(args, program)


if __name__ == "__main__":
    main()
