"""Measures staging against `cp` and against the shaped lower bound; prints the table of benchmarks/NOTES.md, or JSON.

    python benchmarks/stage.py [--megabytes 256] [--ways local,latency] [--json]

- local: one copy from a local disk, in turns with `cp` and a sync of every file; the source is not in the page cache.
- latency: a source that answers each read after 5 ms, in turns with `cp`.
- broadcast: 1 to 4 nodes behind one source of 100 MB/s; the bound is S / source. Nodes are processes of mpiexec with
  their own host names (needs root). The bytes read are counted at the source. Core seconds for each GB are the slope
  between an eighth of the data set and all of it; the rest is the start of Python and MPI.
- again: a second stage of 1,000 and of 10,000 files.
- million: a second stage of 10^6 shards of a byte each, which takes two minutes to make.
- crowd: 64 processes stage the same data set on one node at once; the owner of a copy is killed while another waits.
- planning: the placement of 10^6 shards on 10^4 nodes.

It takes about three minutes, on two cores, without the million.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import resource
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from dlio.dataset.manifest import File, Manifest, Shard
from dlio.dataset.schema import Schema
from dlio.io.files import digest_file
from dlio.stage.planning.homes import assign
from dlio.stage.run import run

HERE = Path(__file__).parent
MPIEXEC = Path(sys.executable).with_name("mpiexec")
SOURCE_RATE = 100.0  # MB/s

NODE = """
import json, os, resource, socket, sys
from dlio.stage.run import run
_, summary = run(sys.argv[1], os.path.join(sys.argv[2], socket.gethostname()), strategy=sys.argv[3])
used = resource.getrusage(resource.RUSAGE_SELF)
report = {"seconds": summary.seconds, "peak_mb": used.ru_maxrss / 1000, "core": used.ru_utime + used.ru_stime}
with open(os.path.join(sys.argv[4], socket.gethostname()), "w") as file:
    json.dump(report, file)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description="Measures staging.")
    parser.add_argument("--megabytes", type=int, default=256)
    parser.add_argument("--ways", default=",".join(WAYS), help=f"of these and million: {', '.join(WAYS)}")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR", "/var/tmp")) as folder:
        root = Path(folder)
        source = write_dataset(root / "source", 16, options.megabytes << 16)
        rows = (row for way in options.ways.split(",") for row in (WAYS | {"million": million})[way](source, root))
        if options.json:
            print(json.dumps(dict(rows)))
            return
        print("| what | figure |\n|---|---|")
        for name, value in rows:
            print(f"| {name} | {value:.3f} |", flush=True)


def write_dataset(root: Path, num_shards: int, shard_bytes: int) -> Manifest:
    root.mkdir()
    contents, shards = random.Random(0), []
    for number in range(num_shards):
        path = root / f"shard-{number:05d}.bin"
        path.write_bytes(contents.randbytes(shard_bytes))
        shards.append(Shard(path.stem, 1, (File(path.name, shard_bytes, digest_file(path)),)))
    manifest = Manifest("tfrecord", Schema.of({"image": "bytes"}, (), 0), tuple(shards), {}, root)
    manifest.save(root)
    return manifest


def forget(folder: Path) -> None:
    """Drops a folder's files from the page cache: not others', which other programs need."""
    for path in folder.iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def timed_cp(source: Path, dest: Path) -> float:
    forget(source)
    started = time.perf_counter()
    subprocess.run(["cp", "-r", source, dest], check=True)
    subprocess.run(["sync", *dest.iterdir()], check=True)
    seconds = time.perf_counter() - started
    shutil.rmtree(dest)
    return seconds


def timed_stage(source: Path, dest: Path) -> float:
    forget(source)
    started = time.perf_counter()
    run(source, dest, strategy="replicate")
    seconds = time.perf_counter() - started
    shutil.rmtree(dest)
    return seconds


def core_seconds(who: int = resource.RUSAGE_SELF) -> float:
    used = resource.getrusage(who)
    return used.ru_utime + used.ru_stime


def local(source: Manifest, root: Path) -> Iterator[tuple[str, float]]:
    """Yields the median of nine of each, taken in turns, and of their ratios."""
    copies, stages, cores, cps = [], [], [], []
    for _ in range(9):
        before = core_seconds(resource.RUSAGE_CHILDREN)
        copies.append(timed_cp(source.root, root / "copied"))
        cps.append(core_seconds(resource.RUSAGE_CHILDREN) - before)
        before = core_seconds()
        stages.append(timed_stage(source.root, root / "staged"))
        cores.append(core_seconds() - before)
    ratios = [copied / staged for copied, staged in zip(copies, stages, strict=True)]
    yield "local: cp with sync, s", statistics.median(copies)
    yield "local: dlio stage, s", statistics.median(stages)
    yield "local: cp / stage (at least 1.8)", statistics.median(ratios)
    yield "local: core seconds per GB of cp and sync", statistics.median(cps) / gigabytes(source)
    yield "local: core seconds per GB (at most 0.8)", statistics.median(cores) / gigabytes(source)


@contextlib.contextmanager
def slow(folder: Path, root: Path, *options: str) -> Iterator[Path]:
    mounted = Path(tempfile.mkdtemp(dir=root))
    counts = str(mounted) + ".counts"
    script = [sys.executable, str(HERE / "slow_source.py"), str(folder), str(mounted), "--counts", counts, *options]
    server = subprocess.Popen(script, stderr=subprocess.DEVNULL)
    try:
        while not mounted.is_mount():
            if server.poll() is not None:
                raise SystemExit("FUSE cannot be mounted here")
            time.sleep(0.02)
        yield mounted
    finally:
        subprocess.run(["umount", "-l", str(mounted)], check=False)
        server.wait()


def latency(source: Manifest, root: Path) -> Iterator[tuple[str, float]]:
    with slow(source.root, root, "--latency-ms", "5") as mounted:
        copied = timed_cp(mounted, root / "copied")
        staged = timed_stage(mounted, root / "staged")
    yield "5 ms latency: cp with sync, s", copied
    yield "5 ms latency: dlio stage, s", staged
    yield "5 ms latency: cp / stage (at least 15)", copied / staged


def broadcast(source: Manifest, root: Path) -> Iterator[tuple[str, float]]:
    eighth = write_dataset(root / "eighth", 16, source.num_bytes >> 7)
    bound = source.num_bytes / (SOURCE_RATE * 1e6)
    for nodes in (1, 2, 3, 4):
        reports, read = timed_nodes(source, root, nodes, "broadcast")
        seconds = longest(reports, "seconds")
        yield f"broadcast, {nodes} nodes: s", seconds
        yield f"broadcast, {nodes} nodes: time / bound (at most 1.15)", seconds / bound
        yield f"broadcast, {nodes} nodes: read / data (at most 1.001)", read / source.num_bytes
    yield "broadcast: memory of a copier, MB (at most 192)", longest(reports, "peak_mb")
    less, core = longest(timed_nodes(eighth, root, 4, "broadcast")[0], "core"), longest(reports, "core")
    slope = (core - less) / (gigabytes(source) - gigabytes(eighth))
    yield "broadcast: core seconds per GB (at most 0.8)", slope
    yield "broadcast: core seconds of the start of Python and MPI", less - slope * gigabytes(eighth)
    every, _ = timed_nodes(source, root, 4, "replicate")
    yield "4 nodes reading all: s", longest(every, "seconds")
    yield "4 nodes: reading all / broadcast (at least 3)", longest(every, "seconds") / seconds
    yield "replicate: memory of a copier, MB (at most 192)", longest(every, "peak_mb")


def longest(reports: list[dict[str, float]], name: str) -> float:
    """Returns a figure of the node that has most of it."""
    return max(report[name] for report in reports)


def gigabytes(source: Manifest) -> float:
    return source.num_bytes / 1e9


def timed_nodes(source: Manifest, root: Path, nodes: int, strategy: str) -> tuple[list[dict[str, float]], int]:
    """Returns what each node reports, and the bytes read at the source, the manifests not counted."""
    named = 'hostname node$PMI_RANK; exec "$0" "$@"'
    with slow(source.root, root, "--bandwidth", str(SOURCE_RATE)) as mounted:
        log = Path(tempfile.mkdtemp(dir=root))
        command = [str(MPIEXEC), "-n", str(nodes), "unshare", "-u", "sh", "-c", named, sys.executable, "-c", NODE]
        subprocess.run([*command, str(mounted), str(root / "nodes"), strategy, str(log)], check=True)
        read = int(Path(f"{mounted}.counts").read_text())
    shutil.rmtree(root / "nodes")
    manifests = nodes * (source.root / "manifest.jsonl").stat().st_size
    return [json.loads(path.read_text()) for path in log.iterdir()], read - manifests


def again(_: Manifest, root: Path) -> Iterator[tuple[str, float]]:
    yield from second(root, 1000, 10, 51, 9)
    yield from second(root, 10_000, 10, 60, 9)


def second(root: Path, files: int, size: int, most: int, rounds: int) -> Iterator[tuple[str, float]]:
    """Yields the best of some second stages of as many files."""
    many = write_dataset(root / f"many{files}", files, size)
    run(many.root, root / "again", strategy="replicate")
    walls, cores = [], []
    for _ in range(rounds):
        started, before = time.perf_counter(), core_seconds()
        run(many.root, root / "again", strategy="auto")
        walls.append(time.perf_counter() - started)
        cores.append(core_seconds() - before)
    yield f"second stage of {files:,} files, ms (at most {most:,})", 1000 * min(walls)
    yield f"second stage of {files:,} files, core ms", 1000 * min(cores)


def crowd(source: Manifest, root: Path) -> Iterator[tuple[str, float]]:
    """Yields how many of 64 copied, and how long a waiting process takes to continue for a killed one."""
    together = [forked(source, root / "crowd", root / f"crowd-{number}") for number in range(64)]
    for pid in together:
        os.waitpid(pid, 0)
    copied = [int(path.read_text()) > 0 for path in root.glob("crowd-*")]
    yield "64 processes at once: how many copied (of 64 that returned)", sum(copied) if len(copied) == 64 else -1
    with slow(source.root, root, "--bandwidth", str(SOURCE_RATE)) as mounted:
        slow_copy = Manifest.load(mounted)
        owner = forked(slow_copy, root / "heir", root / "owner")
        claims = root / "heir" / "dlio" / ".claims" / source.content_id
        while not (claims / "1").exists():
            time.sleep(0.005)
        heir = forked(slow_copy, root / "heir", root / "next")
        time.sleep(0.5)
        killed = time.perf_counter()
        os.kill(owner, signal.SIGKILL)
        while not (claims / "2").exists():
            time.sleep(0.001)
        yield "owner killed: taken over after, s (at most 2)", time.perf_counter() - killed
        for pid in (owner, heir):
            os.waitpid(pid, 0)


def forked(source: Manifest, dest: Path, log: Path) -> int:
    """Returns the id of a new process that stages, and writes how many bytes it copied to `log`."""
    pid = os.fork()
    if pid == 0:
        _, summary = run(source, dest, strategy="replicate")
        log.write_text(str(summary.copied_bytes))
        os._exit(0)
    return pid


def million(_: Manifest, root: Path) -> Iterator[tuple[str, float]]:
    yield from second(root, 10**6, 1, 3000, 3)


def planning(*_: object) -> Iterator[tuple[str, float]]:
    sizes = [(number * 7919) % 100_000_000 for number in range(10**6)]
    started = time.process_time()
    assign(sizes, 10**4)
    yield "placement of 10^6 shards on 10^4 nodes, core s (less than 2)", time.process_time() - started


WAYS: dict[str, Callable[[Manifest, Path], Iterator[tuple[str, float]]]] = {
    "local": local,
    "latency": latency,
    "broadcast": broadcast,
    "again": again,
    "crowd": crowd,
    "planning": planning,
}

if __name__ == "__main__":
    main()
