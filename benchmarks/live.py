"""Measures training while a data set is being staged, with several nodes as folders and processes of this machine.

    python benchmarks/live.py --data /tmp/bench
    python benchmarks/live.py --data /tmp/bench --nodes 1,2,4 --strategy partition --bandwidth 100 --cache 0.5

The source is `slow_mount.c`, a FUSE mount of a bandwidth that all nodes share, which counts what is read from it.
Each node is a process with one rank, whose trainer takes `--step-ms` for a batch, and whose agent keeps its copy in a
folder of its own. It prints the seconds to the first batch, and those that its bytes take at the source's bandwidth;
the share of the set that was staged by then; the seconds of the first and the third epoch, and those of this loader
with all files local; and the bytes read from the source, over the size of the set.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image
from slow_mount import mounted

import dlio
from dlio.cluster.topology import Topology
from dlio.dataset.manifest import Manifest
from dlio.loaders.dataset import PackedSamples
from dlio.loaders.loader import ArrayBatches, Loader
from dlio.stage.client.start import ensure_agent
from dlio.stage.client.status import answer
from dlio.stage.copies.live_folder import LiveFolder

BATCH, EPOCHS = 64, 3
SCRIPT = Path(__file__)


def comment() -> bytes:
    """Returns a segment of a JPEG that holds 55 KB of random bytes."""
    return b"\xff\xfe" + (55_002).to_bytes(2, "big") + random.randbytes(55_000)


def packed(folder: Path, mebibytes: int) -> Manifest:
    """Returns a data set of random bytes, 110 KB each, in shards of 8 MiB; made once."""
    images, out = folder / f"live-{mebibytes}", folder / f"live-{mebibytes}-packed"
    if not out.exists():
        buffer = io.BytesIO()
        Image.new("RGB", (64, 64)).save(buffer, "jpeg")
        picture = buffer.getvalue()
        for number in range(mebibytes * 1024 // 107):
            path = images / f"class{number % 10}" / f"{number:06}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(picture[:2] + comment() + comment() + picture[2:])
        dlio.pack(dlio.sources.image_folder(images), out, format="tfrecord", shard_size=8 << 20)
    return Manifest.load(out)


@contextmanager
def throttled(folder: Path, work: Path, bandwidth: float, latency: float) -> Iterator[tuple[Path, Path]]:
    """Yields a slow view of a folder, and the file that counts the bytes read from it."""
    mount, counts = work / "source", work / "counts"
    with mounted(folder, mount, latency, bandwidth, counts):
        yield mount, counts


def epochs(
    samples: PackedSamples, rank: int, world_size: int, step_seconds: float
) -> Iterator[tuple[float, float, Any]]:
    """Yields the seconds to the first batch and to the end of each epoch, and the loader, right after each of both."""
    source = ArrayBatches(samples)
    loader = Loader(source, BATCH, shuffle=True, seed=1, num_workers=2, rank_and_size=lambda: (rank, world_size))
    for _ in range(EPOCHS):
        began, first = time.perf_counter(), 0.0
        for _ in loader:
            if not first:
                first = time.perf_counter() - began
                yield first, 0.0, loader
            time.sleep(step_seconds)
        yield first, time.perf_counter() - began, loader
    loader.close()


def run_rank(source: str, dest: Path, topology: Topology, strategy: str, step_seconds: float, cache: float) -> None:
    """Trains as one node, and prints what it measured; waits for a line before it begins."""
    manifest = Manifest.load(source)
    os.environ["DLIO_STAGED"] = str(dest)
    sys.stdin.readline()
    began = time.perf_counter()
    most = None if cache >= 1 else int(cache * manifest.num_bytes)
    folder = ensure_agent(source, dest, strategy=strategy, topology=topology, cache_bytes=most)
    samples = PackedSamples(source)
    opened = time.perf_counter() - began
    told: dict[str, Any] = {"open": opened, "first": [], "epoch": [], "stats": []}
    for first, seconds, loader in epochs(samples, topology.rank, topology.world_size, step_seconds):
        if seconds:
            told["epoch"].append(seconds)
            told["stats"].append(loader.stats())
            continue
        told["first"].append(first)
        if "staged" not in told:
            found = answer(folder)
            told["staged"] = found["nodes"][0]["staged_bytes"] / manifest.num_bytes if found else 1.0
    print(json.dumps(told), flush=True)
    sys.stdin.readline()  # others may still read from this node
    if agent := LiveFolder(folder).agent():
        os.kill(agent.owner.pid, signal.SIGTERM)


@dataclass(frozen=True, slots=True)
class Job:
    """What the ranks of one job measured, and the bytes that they read from the source."""

    ranks: list[dict[str, Any]]
    source_bytes: int

    def slowest(self, name: str, number: int) -> float:
        return max(rank[name][number] for rank in self.ranks)


def run_job(source: Path, counts: Path, work: Path, num_nodes: int, words: list[str | Path]) -> Job:
    """Runs a job of this many nodes; `words` are a rank's command, except for its place."""
    environ = os.environ | {"DLIO_LAUNCHER": "single", "DLIO_MEET": str(work / "meet"), "DLIO_INTERFACE": "127.0.0.1"}
    (work / "meet").mkdir(parents=True, mode=0o700)
    before = int(counts.read_text() or 0)
    ranks = []
    for rank in range(num_nodes):
        (dest := work / f"node{rank}").mkdir()
        task = {"source": str(source), "dest": str(dest), "rank": rank, "nodes": num_nodes}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        command = [*words, "--rank-of", json.dumps(task)]
        ranks.append(subprocess.Popen(command, env=environ, text=True, **pipes))  # type: ignore[call-overload]
    for rank in ranks:
        rank.stdin.write("go\n")
        rank.stdin.flush()
    told = [json.loads(rank.stdout.readline()) for rank in ranks]
    for rank in ranks:
        rank.communicate("end\n")
    shutil.rmtree(work, ignore_errors=True)
    return Job(told, int(counts.read_text()) - before)


def all_local(manifest: Manifest, num_nodes: int, step_seconds: float) -> float:
    """Returns the median seconds of an epoch of rank 0 over local files."""
    ends = epochs(PackedSamples(manifest), 0, num_nodes, step_seconds)
    return statistics.median(seconds for _, seconds, _ in ends if seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description="Training while a data set is being staged.")
    parser.add_argument("--data", type=Path, required=True, help="a folder for shards, mounts and copies")
    parser.add_argument("--mebibytes", type=int, default=256, help="the size of the data set")
    parser.add_argument("--nodes", default="1,2,4")
    parser.add_argument("--strategy", default="replicate")
    parser.add_argument("--bandwidth", type=float, default=100.0, help="of the source, MB/s over all nodes")
    parser.add_argument("--latency-ms", type=float, default=1.0)
    parser.add_argument("--step-ms", type=float, default=100.0, help="the trainer's time for a batch")
    parser.add_argument("--cache", type=float, default=1.0, help="what a node may keep, over the size of the set")
    parser.add_argument("--rank-of", help=argparse.SUPPRESS)
    options = parser.parse_args()
    step_seconds = options.step_ms / 1000
    if options.rank_of:
        task = json.loads(options.rank_of)
        topology = Topology(task["rank"], task["nodes"], 0, 1, task["rank"], task["nodes"])
        run_rank(task["source"], Path(task["dest"]), topology, options.strategy, step_seconds, options.cache)
        return
    manifest = packed(options.data, options.mebibytes)
    size, work = manifest.num_bytes, options.data / f"live-run-{os.getpid()}"
    least = BATCH * size / manifest.num_samples / (options.bandwidth * 1e6)
    print(f"{size / 1e6:.0f} MB in {len(manifest.shards)} shards, {options.strategy}, {options.bandwidth:g} MB/s")
    with throttled(manifest.root, work, options.bandwidth, options.latency_ms) as (source, counts):
        for num_nodes in map(int, options.nodes.split(",")):
            local = all_local(manifest, num_nodes, step_seconds)
            words = [sys.executable, SCRIPT, *sys.argv[1:]]
            job = run_job(source, counts, work / f"job{num_nodes}", num_nodes, words)
            staged = statistics.mean(rank["staged"] for rank in job.ranks)
            bound = max(local, size / (options.bandwidth * 1e6))
            first, third = job.slowest("epoch", 0), job.slowest("epoch", -1)
            print(
                f"{num_nodes} nodes: open {job.ranks[0]['open']:.2f} s, first batch {job.slowest('first', 0):.2f} s "
                f"(its bytes at the source's rate {least * num_nodes:.2f} s), {staged:.1%} staged by then; "
                f"epoch 1 {first:.2f} s = {first / bound:.2f} x max(all local, source), "
                f"epoch 3 {third:.2f} s, all local {local:.2f} s: rate x {local / third:.2f}; "
                f"source read {job.source_bytes / size:.3f} x the set",
                flush=True,
            )


if __name__ == "__main__":
    main()
