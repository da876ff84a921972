"""Measures the way of bytes between two nodes: core seconds of both ends, in turns with the floor and other versions.

    python benchmarks/transfer.py --data /var/tmp [--pythons old/bin/python new/bin/python] [--rounds 5] [--json]

- transfer: a node has all of a data set, and another one gets its copy from there over the loopback interface, with
  nothing read from the source: send, receive, digest, write past the page cache, sync, name. Counted are `stage` of
  both processes from its call to its end, with the meeting.
- floor: one process sends the same files by sendfile, another one takes them by recv_into with MSG_WAITALL, computes
  their xxh3-128, and writes them past the page cache, 4 MiB at a time.
- small: as transfer, with files of 20 KB.

The sender's files are in the page cache. Given are the medians and the ranges; the first round warms up.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import resource
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from stage import write_dataset

from dlio.dataset.manifest import Manifest
from dlio.io.files import new_hash
from dlio.stage.run import run

SMALL_BYTES = 20_000
PASSED_BYTES = 4 << 20
NODE = """
import json, resource, sys, time
import dlio.stage.engine.node, dlio.stage.meeting.folder
from dlio.cluster.topology import Topology
from dlio.stage.run import run
def core():
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime
node, before, began = int(sys.argv[1]), core(), time.perf_counter()
_, summary = run(sys.argv[2], sys.argv[3], strategy="broadcast", topology=Topology(node, 2, 0, 1, node, 2))
seconds = time.perf_counter() - began
print(json.dumps({"source": summary.source_bytes, "core": core() - before, "seconds": seconds}))
"""
Figures = dict[str, float]


def core_seconds(who: int) -> float:
    used = resource.getrusage(who)
    return used.ru_utime + used.ru_stime


def transfer(python: str, source: Manifest, sender: Path, work: Path) -> Figures:
    """Returns what it costs to bring all of a data set from one node to another."""
    work.mkdir()
    environ = os.environ | {"DLIO_MEET": str(work), "DLIO_INTERFACE": "127.0.0.1"}
    nodes = []
    for node, dest in enumerate((sender, work / "receiver")):
        words = [python, "-c", NODE, str(node), str(source.root), str(dest)]
        nodes.append(subprocess.Popen(words, stdout=subprocess.PIPE, env=environ, text=True))
        while not list(work.glob("*/*/node-0of2.json")):  # else the receiver would read the source
            time.sleep(0.01)
    sent, received = (json.loads(each.communicate()[0]) for each in nodes)
    shutil.rmtree(work)
    if sent["source"] or received["source"]:
        raise SystemExit("the source was read")
    gigabytes = source.num_bytes / 1e9
    figures = {"send": sent["core"] / gigabytes, "receive": received["core"] / gigabytes}
    return figures | {"both": sum(figures.values()), "GB/s": gigabytes / received["seconds"]}


def floor(files: list[Path], work: Path) -> Figures:
    """Returns what it costs to send files, and to write what comes."""
    count = 0
    listening, before = socket.create_server(("127.0.0.1", 0)), core_seconds(resource.RUSAGE_CHILDREN)
    if not (sender := os.fork()):
        with listening.accept()[0] as peer:
            for path in files:
                with path.open("rb") as file:
                    peer.sendfile(file)
        os._exit(0)
    buffer, running = memoryview(mmap.mmap(-1, PASSED_BYTES)), new_hash("xxh3-128")
    out, began = os.open(work, os.O_CREAT | os.O_WRONLY | os.O_DIRECT), time.perf_counter()
    started = core_seconds(resource.RUSAGE_SELF)
    with socket.create_connection(listening.getsockname()) as peer:
        while more := peer.recv_into(buffer, PASSED_BYTES, socket.MSG_WAITALL):
            running.update(buffer[:more])
            count += os.pwrite(out, buffer[: more - more % mmap.PAGESIZE], count)
    os.fsync(out)
    received, seconds = core_seconds(resource.RUSAGE_SELF) - started, time.perf_counter() - began
    os.waitpid(sender, 0)
    sent = core_seconds(resource.RUSAGE_CHILDREN) - before
    os.close(out)
    work.unlink()
    listening.close()
    gigabytes = count / 1e9
    figures = {"send": sent / gigabytes, "receive": received / gigabytes}
    return figures | {"both": sum(figures.values()), "GB/s": gigabytes / seconds}


def measure(options: argparse.Namespace, work: Path) -> dict[str, list[Figures]]:
    """Returns the figures of each way, round by round."""
    shards = max(options.megabytes // options.shard_megabytes, 1)
    sets = {"transfer": write_dataset(work / "large", shards, options.shard_megabytes << 20)}
    if options.files:
        sets["small"] = write_dataset(work / "small", options.files, SMALL_BYTES)
    for way, source in sets.items():
        run(source.root, work / f"{way}-sender", strategy="replicate")
        for path in (work / f"{way}-sender").rglob("*.bin"):
            path.read_bytes()
    found: dict[str, list[Figures]] = {}
    for turn in range(options.rounds + 1):
        figures = {"floor": floor(sorted((work / "transfer-sender").rglob("*.bin")), work / "floor")}
        for way, source in sets.items():
            for python in options.pythons[:: 1 if turn % 2 else -1]:
                name = f"{way}, {python}" if len(options.pythons) > 1 else way
                figures[name] = transfer(python, source, work / f"{way}-sender", work / "passed")
        for name, each in figures.items() if turn else ():
            found.setdefault(name, []).append(each)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="What it costs to pass bytes between two nodes.")
    parser.add_argument("--data", type=Path, default=Path("/var/tmp"), help="a folder for the source and the copies")
    parser.add_argument("--pythons", nargs="+", default=[sys.executable], help="of the versions to compare")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--megabytes", type=int, default=1024, help="the size of the data set")
    parser.add_argument("--shard-megabytes", type=int, default=64)
    parser.add_argument("--files", type=int, default=0, help="small ones, of 20 KB")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.data) as folder:
        found = measure(options, Path(folder))
    names = list(found["floor"][0])
    print(f"| core seconds per GB | {' | '.join(names)} |\n|{'---|' * (len(names) + 1)}")
    for way, rounds in found.items():
        said = [[each[name] for each in rounds] for name in names]
        shown = (f"{statistics.median(each):.2f} ({min(each):.2f} to {max(each):.2f})" for each in said)
        print(f"| {way} | {' | '.join(shown)} |", flush=True)


if __name__ == "__main__":
    main()
