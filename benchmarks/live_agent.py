"""Measures what an agent costs: CPU of both ends of a transfer, memory, and CPU while nothing is asked of it.

    python benchmarks/live_agent.py --data /dev/shm

A node has all of a data set, and a second one of the same job gets its copy from there over the loopback interface,
with nothing read from the source. The CPU time is that of both agents, from the start of the transfer to the finished
copy: send, receive, write and digest. Then a loader's client reads everything through the second agent, and both idle.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import sys
import tempfile
import time
from pathlib import Path

from dlio.cluster.topology import Topology
from dlio.stage.cache.folder import StagedFolder
from dlio.stage.live.client import Client
from dlio.stage.live.folder import LiveFolder
from dlio.stage.live.start import ensure_agent
from dlio.stage.live.wire import MAX_READ

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.helpers.staging import MiB, write_dataset

IDLE_SECONDS = 10.0


class Agent:
    """The agent of a node, as the system sees it."""

    def __init__(self, source: Path, dest: Path, node: int) -> None:
        topology = Topology(node, 2, 0, 1, node, 2)
        self.folder: StagedFolder = ensure_agent(source, dest, topology=topology)
        self.client = Client(self.folder)
        record = LiveFolder(self.folder).agent()
        self.process = Path(f"/proc/{record.owner.pid if record else 0}")

    def cpu(self) -> float:
        """Returns its CPU time in seconds."""
        words = (self.process / "stat").read_text().rpartition(")")[2].split()
        return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")

    def memory(self) -> dict[str, int]:
        """Returns the MB that it has had at most, and those of its own that it has now."""
        lines = (line.partition(":") for line in (self.process / "status").read_text().splitlines())
        return {name: int(value.split()[0]) >> 10 for name, _, value in lines if name in ("VmHWM", "RssAnon")}

    def complete(self) -> None:
        """Waits until its copy is complete."""
        while not self.client.stat()["nodes"][0]["is_complete"]:
            time.sleep(0.05)


def measure(work: Path, mebibytes: int) -> None:
    os.environ |= {"DLIO_MEET": str(work / "meet"), "DLIO_INTERFACE": "127.0.0.1"}
    manifest = write_dataset(work / "source", [32 * MiB] * (mebibytes // 32))
    first, gigabytes = Agent(manifest.root, work / "node0", 0), manifest.num_bytes / 1e9
    first.complete()  # after a minute: until then it leaves half of the files to the second
    before, began = first.cpu(), time.perf_counter()
    second = Agent(manifest.root, work / "node1", 1)
    started = second.cpu()
    second.complete()
    sent, received = first.cpu() - before, second.cpu() - started
    seconds, found = time.perf_counter() - began, second.client.stat()
    print(
        f"node 1: {found['peer_bytes'] / 1e9:.2f} GB from node 0 in {seconds:.1f} s, {found['source_bytes'] / 1e9:.2f} "
        f"from the source; CPU a GB: {sent / gigabytes:.2f} s sending + {received / gigabytes:.2f} s receiving, "
        "writing and digest"
    )
    memory = memoryview(bytearray(MAX_READ))
    before, mine = second.cpu(), resource.getrusage(resource.RUSAGE_SELF)
    for number in range(len(manifest.shards)):
        for begin in range(0, 32 * MiB, MAX_READ):
            second.client.read(number, [(begin, begin + MAX_READ)], memory)
    now = resource.getrusage(resource.RUSAGE_SELF)
    taken = now.ru_utime + now.ru_stime - mine.ru_utime - mine.ru_stime
    print(f"read through its agent, CPU a GB: {(second.cpu() - before) / gigabytes:.2f} s + {taken / gigabytes:.2f} s")
    before = first.cpu() + second.cpu()
    time.sleep(IDLE_SECONDS)
    print(f"idle: {(first.cpu() + second.cpu() - before) / 2 / IDLE_SECONDS:.2%} of a core; {second.memory()} MB")
    for agent in (first, second):
        agent.client.close()
        LiveFolder(agent.folder).end_agent()


def main() -> None:
    parser = argparse.ArgumentParser(description="What an agent of live staging costs.")
    parser.add_argument("--data", type=Path, required=True, help="a folder for the source and the copies")
    parser.add_argument("--mebibytes", type=int, default=1024, help="the size of the data set")
    options = parser.parse_args()
    work = Path(tempfile.mkdtemp(dir=options.data))
    try:
        measure(work, options.mebibytes)
    finally:
        shutil.rmtree(work)


if __name__ == "__main__":
    main()
