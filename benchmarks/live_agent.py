"""Measures what an agent costs, in turns with other versions: of a local fill, and idle. transfer.py has two nodes.

    python benchmarks/live_agent.py --data /tmp [--pythons old/bin/python new/bin/python] [--rounds 3]

- local: an agent fills a copy from a folder on the same disk, as the only node, in turns with `cp` and a sync of every
  file, and with `dlio stage --strategy replicate`, whose start is measured with an empty data set and left out.
- small: the same with files of 20 KB.
- idle: CPU of an idle agent, and its memory.

The source is not in the page cache. The first run warms up and does not count; the others are in turns.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from stage import forget, write_dataset

from dlio.cluster.topology import Topology
from dlio.dataset.manifest import Manifest
from dlio.stage.client import launch
from dlio.stage.client.client import Client
from dlio.stage.client.start import Task
from dlio.stage.copies.folder import StagedFolder
from dlio.stage.copies.live_folder import LiveFolder

MiB = 1 << 20
SMALL_BYTES = 20_000
IDLE_SECONDS = 10.0
STAGE = "import sys; from dlio.stage.run import run; run(sys.argv[1], sys.argv[2], strategy='replicate')"
Figures = dict[str, float]


class Agent:
    """The agent of a node, as the system sees it."""

    def __init__(self, source: Path, dest: Path, node: int, nodes: int) -> None:
        task = Task(str(source), dest, "replicate", Topology(node, nodes, 0, 1, node, nodes))
        self.folder = StagedFolder(dest, task.planned()[2])
        self.began = time.perf_counter()
        launch.agent(task.to_json(), LiveFolder(self.folder).log)
        record = LiveFolder(self.folder).agent()
        self.process = Path(f"/proc/{record.owner.pid if record else 0}")
        self.ready, self.started = time.perf_counter(), self.cpu()
        self.client = Client(self.folder)

    def cpu(self) -> float:
        """Returns its CPU time in seconds."""
        words = (self.process / "stat").read_text().rpartition(")")[2].split()
        return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")

    def memory(self) -> Figures:
        """Returns the MB that it has had at most, and those of its own that it has now."""
        lines = (line.partition(":") for line in (self.process / "status").read_text().splitlines())
        return {f"{name}, MB": int(value.split()[0]) >> 10 for name, _, value in lines if name in ("VmHWM", "RssAnon")}

    def complete(self) -> None:
        """Waits until its copy is complete."""
        while not self.folder.has_manifest():
            time.sleep(0.01)

    def end(self) -> None:
        self.client.close()
        if agent := LiveFolder(self.folder).signal_agent():
            while agent.is_alive():
                time.sleep(0.01)


def stage(source: Path, dest: Path) -> tuple[float, float]:
    """Returns the seconds and the CPU seconds of a process that stages."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run([sys.executable, "-c", STAGE, source, dest], check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.perf_counter() - began, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def local(manifest: Manifest, work: Path) -> Figures:
    """Returns what it costs to fill a copy from a local source, compared with `cp` and `dlio stage`."""
    gigabytes = manifest.num_bytes / 1e9
    empty = write_dataset(work / "empty", 0, 0)
    start = stage(empty.root, work / "started")
    forget(manifest.root)
    staged = stage(manifest.root, work / "staged")
    shutil.rmtree(work / "staged")
    forget(manifest.root)
    began = time.perf_counter()
    subprocess.run(["cp", "-r", manifest.root, work / "copied"], check=True)
    subprocess.run(f"find {work / 'copied'} -type f -print0 | xargs -0 sync", shell=True, check=True)
    copied = time.perf_counter() - began
    shutil.rmtree(work / "copied")
    forget(manifest.root)
    agent = Agent(manifest.root, work / "filled", 0, 1)
    agent.complete()
    seconds = time.perf_counter() - agent.ready
    figures = {
        "CPU": (agent.cpu() - agent.started) / gigabytes,
        "GB/s": gigabytes / seconds,
        "cp / agent": copied / seconds,
        "stage CPU": (staged[1] - start[1]) / gigabytes,
        "stage GB/s": gigabytes / (staged[0] - start[0]),
    }
    memory = agent.memory()
    agent.end()
    return figures | memory


def idle(manifest: Manifest, work: Path) -> Figures:
    """Returns what an idle agent costs."""
    agent = Agent(manifest.root, work / "node", 0, 1)
    agent.complete()
    before = agent.cpu()
    time.sleep(IDLE_SECONDS)
    found = {"% of a core": (agent.cpu() - before) / IDLE_SECONDS * 100} | agent.memory()
    agent.end()
    return found


WAYS: dict[str, Callable[[Manifest, Path], Figures]] = {
    "local": local,
    "small local": local,
    "idle": idle,
}


def one(way: str, source: Path, data: Path) -> None:
    """Prints the figures of one way as JSON."""
    work = Path(tempfile.mkdtemp(dir=data))
    os.environ |= {"DLIO_MEET": str(work), "DLIO_INTERFACE": "127.0.0.1"}
    try:
        print(json.dumps(WAYS[way](Manifest.load(source), work)))
    finally:
        shutil.rmtree(work)


def measure(options: argparse.Namespace, work: Path) -> None:
    """Prints the medians of each way and version, and their range."""
    write_dataset(work / "large", max(options.megabytes // options.shard_megabytes, 1), options.shard_megabytes * MiB)
    if options.files:
        write_dataset(work / "small", options.files, SMALL_BYTES)
    for way in options.ways.split(","):
        source = work / ("small" if "small" in way else "large")
        found: dict[str, list[Figures]] = {python: [] for python in options.pythons}
        for turn in range(options.rounds + 1):
            for python in options.pythons[:: 1 if turn % 2 else -1]:
                command = [python, __file__, "--data", options.data, "--way", way, "--source", source]
                figures = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
                if turn:
                    found[python].append(figures)
        for python, rounds in found.items():
            said = [(name, [each[name] for each in rounds]) for name in rounds[0]]
            shown = (f"{n} {statistics.median(v):.2f} ({min(v):.2f}-{max(v):.2f})" for n, v in said)
            print(f"{way}, {python}: {'; '.join(shown)}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="What an agent of live staging costs.")
    parser.add_argument("--data", type=Path, required=True, help="a folder for the source and the copies")
    parser.add_argument("--pythons", nargs="+", default=[sys.executable], help="of the versions to compare")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--megabytes", type=int, default=1024, help="the size of the data set")
    parser.add_argument("--shard-megabytes", type=int, default=64)
    parser.add_argument("--files", type=int, default=10_000, help="small ones, of 20 KB")
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--way", help=argparse.SUPPRESS)
    parser.add_argument("--source", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.way:
        one(options.way, options.source, options.data)
        return
    work = Path(tempfile.mkdtemp(dir=options.data))
    try:
        measure(options, work)
    finally:
        shutil.rmtree(work)


if __name__ == "__main__":
    main()
