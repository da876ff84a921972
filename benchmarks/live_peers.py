"""Measures the first epochs of dlio, LitData and MosaicML Streaming on one throttled source that several nodes share.

    python benchmarks/live_peers.py --data /tmp/bench --peers peers/bin/python

`benchmarks/loaders/__main__.py` tells how to make the peers' environment. All read the same images from a mount as
live.py has it, in shards of 8 MiB, shuffled, by two threads or worker processes a node, each node into a folder of its
own. That must not be in /dev/shm: of that each node has one of its own, as Streaming wants it. Given are the seconds
from the beginning to the first batch, of the first and the second epoch, and the bytes read from the source over the
size of the set: medians of the rounds, and for the epochs the least and the most.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import Any

BATCH, EPOCHS, WORKERS, SHARD_BYTES = 64, 2, 2, 8 << 20
SCRIPT = Path(__file__)
#: runs a command as on its own node, with a /dev/shm of its own
NODE = ["unshare", "-m", "sh", "-c", 'mount -t tmpfs none /dev/shm && exec "$0" "$@"']


def listed(images: Path) -> list[tuple[Path, int]]:
    return [(path, int(path.parent.name[-1])) for path in sorted(images.glob("*/*.jpg"))]


def write_mds(images: Path, out: Path) -> None:
    from streaming import MDSWriter

    columns = {"image": "bytes", "label": "int"}
    with MDSWriter(out=str(out), columns=columns, size_limit=SHARD_BYTES) as writer:
        for path, label in listed(images):
            writer.write({"image": path.read_bytes(), "label": label})


def _sample(image: tuple[str, int]) -> dict[str, Any]:
    return {"image": Path(image[0]).read_bytes(), "label": image[1]}


def write_litdata(images: Path, out: Path) -> None:
    from litdata import optimize

    inputs = [(str(path), label) for path, label in listed(images)]
    optimize(_sample, inputs, str(out), chunk_bytes=SHARD_BYTES, num_workers=WORKERS)


def open_mds(source: Path, dest: Path) -> Iterable[Any]:
    from streaming import StreamingDataLoader, StreamingDataset

    samples = StreamingDataset(remote=str(source), local=str(dest), shuffle=True, batch_size=BATCH)
    return StreamingDataLoader(samples, batch_size=BATCH, num_workers=WORKERS, collate_fn=list, persistent_workers=True)


def open_litdata(source: Path, dest: Path) -> Iterable[Any]:
    from litdata import StreamingDataLoader, StreamingDataset

    samples = StreamingDataset(f"local:{source}", cache_dir=str(dest), shuffle=True)
    return StreamingDataLoader(samples, batch_size=BATCH, num_workers=WORKERS, collate_fn=list, persistent_workers=True)


#: imported before anything is measured; torchvision is wanted by Streaming
MODULES = {"Streaming": ("benchmarks.loaders.torchvision_on_cpu", "streaming"), "LitData": ("litdata",)}
WAYS: dict[str, tuple[Callable[[Path, Path], None], Callable[[Path, Path], Iterable[Any]]]] = {
    "Streaming": (write_mds, open_mds),
    "LitData": (write_litdata, open_litdata),
}


def run_rank(way: str, task: dict[str, Any], step_seconds: float) -> None:
    """Trains as one node with another tool, and prints what it measured; waits for a line before it begins."""
    rank, count = str(task["rank"]), str(task["nodes"])
    os.environ |= {"RANK": rank, "GLOBAL_RANK": rank, "WORLD_SIZE": count, "NNODES": count, "LOCAL_RANK": "0",
                   "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29477"}  # fmt: skip
    sys.stdin.readline()
    began = time.perf_counter()
    loader = WAYS[way][1](Path(task["source"]), Path(task["dest"]) / way)
    told: dict[str, Any] = {"open": time.perf_counter() - began, "first": [], "epoch": []}
    for _ in range(EPOCHS):
        began, first = time.perf_counter(), 0.0
        for _ in loader:
            first = first or time.perf_counter() - began
            time.sleep(step_seconds)
        told["first"].append(first)
        told["epoch"].append(time.perf_counter() - began)
    print(json.dumps(told), flush=True)
    os._exit(0)


def main() -> None:
    parser = argparse.ArgumentParser(description="The first epochs of several tools on one slow source.")
    parser.add_argument("--data", type=Path, required=True, help="a folder for shards, mounts and copies")
    parser.add_argument("--peers", default=sys.executable, help="the Python of the peers' environment")
    parser.add_argument("--mebibytes", type=int, default=256, help="the size of the data set")
    parser.add_argument("--nodes", default="1,2,4")
    parser.add_argument("--bandwidth", type=float, default=50.0, help="of the source, MB/s over all nodes")
    parser.add_argument("--latency-ms", type=float, default=1.0)
    parser.add_argument("--step-ms", type=float, default=50.0, help="the trainer's time for a batch")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--way", help=argparse.SUPPRESS)
    parser.add_argument("--prepare", help=argparse.SUPPRESS)
    parser.add_argument("--rank-of", help=argparse.SUPPRESS)
    options = parser.parse_args()
    images = options.data / f"live-{options.mebibytes}"
    for module in MODULES.get(options.way, ()):
        import_module(module)
    if options.prepare:
        WAYS[options.way][0](images, Path(options.prepare))
    elif options.rank_of:
        run_rank(options.way, json.loads(options.rank_of), options.step_ms / 1000)
    else:
        measure(options, images)


def measure(options: argparse.Namespace, images: Path) -> None:
    """Runs each tool on each number of nodes, in turns."""
    import live

    manifest = live.packed(options.data, options.mebibytes)
    os.environ["PYTHONPATH"] = str(SCRIPT.parents[1])
    peers = {way: [*NODE, options.peers, SCRIPT, *sys.argv[1:], "--way", way] for way in WAYS}
    folders = {"dlio": manifest.root} | {way: images.with_name(f"{images.name}-{way}") for way in WAYS}
    for way, words in peers.items():
        if not folders[way].exists():
            subprocess.run([*words, "--prepare", folders[way]], check=True, stdout=subprocess.DEVNULL)
    size, rate = manifest.num_bytes / 1e6, options.bandwidth
    print(f"### {size:,.0f} MB, {rate:g} MB/s for all nodes: the source alone takes {size / rate:.2f} s\n")
    print("| nodes | tool | first batch, s | epoch 1, s | epoch 2, s | read / set |\n|---|---|---|---|---|---|")
    own = [sys.executable, live.SCRIPT, "--data", options.data, "--step-ms", str(options.step_ms)]
    for num_nodes in map(int, options.nodes.split(",")):
        runs: dict[str, list[tuple[float, ...]]] = {"dlio": [], **{way: [] for way in WAYS}}
        for _ in range(options.rounds):
            for way, words in {"dlio": own, **peers}.items():
                work = options.data / f"peers-run-{os.getpid()}-{way}-{num_nodes}"
                with live.throttled(folders[way], work, options.bandwidth, options.latency_ms) as (source, counts):
                    job = live.run_job(source, counts, work / "job", num_nodes, words)
                opened = max(rank["open"] + rank["first"][0] for rank in job.ranks)
                epochs = (job.slowest("epoch", number) for number in range(EPOCHS))
                runs[way].append((opened, *epochs, job.source_bytes / manifest.num_bytes))
                print(num_nodes, way, *(f"{value:.2f}" for value in runs[way][-1]), file=sys.stderr, flush=True)
        for way, rounds in runs.items():
            opened, first, second, read = zip(*rounds, strict=True)
            cells = f"{median(opened):.2f} | {_spread(first)} | {_spread(second)} | {median(read):.3f}"
            print(f"| {num_nodes} | {way} | {cells} |", flush=True)


def _spread(values: Sequence[float]) -> str:
    few = f" ({min(values):.2f} to {max(values):.2f})" if len(values) > 1 else ""
    return f"{median(values):.2f}{few}"


if __name__ == "__main__":
    main()
