"""Measures staging against `cp` and against the shaped lower bound; prints a table, or one JSON object with --json.

    python tools/bench/stage.py [--megabytes 256] [--json]

- local: one copy from a local disk, beside `cp` with a sync of every file; page cache dropped first.
- latency: a source that answers each read after 5 ms, beside `cp`.
- broadcast: 1 to 4 nodes behind one source of 100 MB/s; the bound is S / source. Nodes are processes of mpiexec with
  host names of their own (needs root). The bytes read are counted at the source.
- again: a second stage of 1,000 files.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from dlio.files import digest_file
from dlio.manifest import File, Manifest, Shard
from dlio.sample import Schema
from dlio.stage.run import run

HERE = Path(__file__).parent
MPIEXEC = Path(sys.executable).with_name("mpiexec")
SOURCE_RATE = 100.0  # MB/s

NODE = """
import json, os, socket, sys
from dlio.stage.run import run
_, summary = run(sys.argv[1], os.path.join(sys.argv[2], socket.gethostname()), strategy=sys.argv[3])
"""


def main() -> None:
    parser = argparse.ArgumentParser(description="Measures staging.")
    parser.add_argument("--megabytes", type=int, default=256)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR", "/var/tmp")) as folder:
        root = Path(folder)
        source = write_dataset(root / "source", 16, options.megabytes << 16)
        rows = [*local(source, root), *latency(source, root), *broadcast(source, root), *again(root)]
    if options.json:
        print(json.dumps(dict(rows)))
    for name, value in [] if options.json else rows:
        print(f"{name:42} {value:10.3f}")


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


def forget_cache() -> None:
    """Drops the page cache, in a process whose core seconds do not count here."""
    subprocess.run(["sh", "-c", "sync; echo 3 > /proc/sys/vm/drop_caches"], check=False)


def timed_cp(source: Path, dest: Path) -> float:
    forget_cache()
    started = time.perf_counter()
    subprocess.run(["cp", "-r", source, dest], check=True)
    subprocess.run(["sync", *dest.iterdir()], check=True)
    seconds = time.perf_counter() - started
    shutil.rmtree(dest)
    return seconds


def timed_stage(source: Path, dest: Path) -> float:
    forget_cache()
    started = time.perf_counter()
    run(source, dest, strategy="replicate")
    seconds = time.perf_counter() - started
    shutil.rmtree(dest)
    return seconds


def core_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def local(source: Manifest, root: Path) -> Iterator[tuple[str, float]]:
    """Yields the best of five of each, taken in turns."""
    copies, stages, cores = [], [], []
    for _ in range(5):
        copies.append(timed_cp(source.root, root / "copied"))
        before = core_seconds()
        stages.append(timed_stage(source.root, root / "staged"))
        cores.append(core_seconds() - before)
    yield "local: cp with sync, s", min(copies)
    yield "local: dlio stage, s", min(stages)
    yield "local: cp / stage (at least 0.95)", min(copies) / min(stages)
    yield "local: core seconds per GB (at most 0.8)", min(cores) / (source.num_bytes / 1e9)


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
    yield "5 ms latency: cp / stage (at least 4)", copied / staged


def broadcast(source: Manifest, root: Path) -> Iterator[tuple[str, float]]:
    bound = source.num_bytes / (SOURCE_RATE * 1e6)
    for nodes in (1, 2, 3, 4):
        seconds, read = timed_nodes(source, root, nodes, "broadcast")
        yield f"broadcast, {nodes} nodes: s", seconds
        yield f"broadcast, {nodes} nodes: time / bound (at most 1.15)", seconds / bound
        yield f"broadcast, {nodes} nodes: read / data (at most 1.001)", read / source.num_bytes
    every, _ = timed_nodes(source, root, 4, "replicate")
    yield "4 nodes reading all: s", every
    yield "4 nodes: reading all / broadcast (at least 3)", every / seconds


def timed_nodes(source: Manifest, root: Path, nodes: int, strategy: str) -> tuple[float, int]:
    """Returns the longest stage in seconds, and the bytes read at the source, the manifests not counted."""
    named = 'hostname node$PMI_RANK; exec "$0" "$@"'
    with slow(source.root, root, "--bandwidth", str(SOURCE_RATE)) as mounted:
        log = Path(tempfile.mkdtemp(dir=root))
        code = NODE + f"open(os.path.join({str(log)!r}, socket.gethostname()), 'w').write(str(summary.seconds))\n"
        command = [str(MPIEXEC), "-n", str(nodes), "unshare", "-u", "sh", "-c", named, sys.executable, "-c", code]
        subprocess.run([*command, str(mounted), str(root / "nodes"), strategy], check=True)
        read = int(Path(f"{mounted}.counts").read_text())
    shutil.rmtree(root / "nodes")
    manifests = nodes * (source.root / "manifest.jsonl").stat().st_size
    return max(float(path.read_text()) for path in log.iterdir()), read - manifests


def again(root: Path) -> Iterator[tuple[str, float]]:
    many = write_dataset(root / "many", 1000, 10)
    run(many.root, root / "again", strategy="replicate")
    times = []
    for _ in range(5):
        started = time.perf_counter()
        run(many.root, root / "again", strategy="auto")
        times.append(time.perf_counter() - started)
    yield "second stage of 1,000 files, ms (at most 51)", 1000 * min(times)


if __name__ == "__main__":
    main()
