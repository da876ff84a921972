"""Measures how much later the first batch comes while another user floods the ports of a job's agents.

    python benchmarks/live_flood.py --data /tmp/bench

Two nodes of one job stage over the loopback interface. Then a loader of the second node reads a part of each file, half
of which the first node owns. In turns nobody disturbs them, and a process of another user (as root; else of this one)
opens 1,000 connections a second to both ports, from the address that the nodes have, and keeps as many as it can.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import socket
import statistics
import sys
import tempfile
import time
from collections import deque
from contextlib import closing, suppress
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from dlio.cluster.topology import Topology
from dlio.stage.live.client import Client
from dlio.stage.live.folder import LiveFolder
from dlio.stage.live.start import ensure_agent
from tests.helpers.staging import MiB, write_dataset

NEIGHBOUR, HELD, BATCH_BYTES, FILES = 2001, 400, 100_000, 16
FLOOD_SECONDS = 30.0  # at most


def ports(meet: Path) -> list[tuple[str, int]]:
    """Returns where the agents of a job listen, as /proc/net/tcp tells everybody."""
    found = []
    for path in meet.rglob("node-*.json"):
        with suppress(ValueError, OSError):
            found.append(tuple(json.loads(path.read_text())["address"]))
    return found


def flood(meet: Path, rate: float) -> None:
    """Opens connections until it is killed, or for half a minute."""
    held: deque[socket.socket] = deque()
    began, count = time.monotonic(), 0
    targets: list[tuple[str, int]] = []
    while (spent := time.monotonic() - began) < FLOOD_SECONDS:
        if count % 100 == 0 or not targets:
            targets = ports(meet) or targets
        for address in targets:
            peer = socket.socket()
            peer.setblocking(False)
            with suppress(OSError):
                peer.connect(address)
            held.append(peer)
            count += 1
        while len(held) > HELD:
            held.popleft().close()
        time.sleep(max(0.001, count / rate - spent))


def flooding(meet: Path, rate: float) -> int:
    """Returns the process of a neighbour that floods the ports of a job."""
    reader = os.open(meet, os.O_RDONLY | os.O_DIRECTORY)
    process = os.fork()
    if process == 0:
        try:
            flood(Path(f"/proc/self/fd/{reader}"), rate)
        finally:
            os._exit(0)
    os.close(reader)
    return process


def first_batch(source: Path, work: Path, rate: float) -> float:
    """Returns the seconds from the start of a second node to its first batch."""
    meet = work / "meet"
    meet.mkdir(mode=0o700, parents=True)
    os.environ |= {"DLIO_MEET": str(meet), "DLIO_INTERFACE": "127.0.0.1", "DLIO_LAUNCHER": "single"}
    folders = [ensure_agent(source, work / "node0", topology=Topology(0, 2, 0, 1, 0, 2))]
    neighbour = flooding(meet, rate) if rate else 0
    try:
        time.sleep(1.0)  # the flood is under way
        began = time.perf_counter()
        folders.append(ensure_agent(source, work / "node1", topology=Topology(1, 2, 0, 1, 1, 2)))
        with closing(Client(folders[1])) as client:
            for number in range(FILES):
                client.read(number, [(0, BATCH_BYTES)], memoryview(bytearray(BATCH_BYTES)))
            return time.perf_counter() - began
    finally:
        if neighbour:
            os.kill(neighbour, signal.SIGKILL)
            os.waitpid(neighbour, 0)
        for folder in folders:
            LiveFolder(folder).end_agent()


def main() -> None:
    parser = argparse.ArgumentParser(description="The first batch while a neighbour floods the agents' ports.")
    parser.add_argument("--data", type=Path, required=True, help="a folder for the source and the copies")
    parser.add_argument("--rate", type=float, default=1000.0, help="connections a second")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    work = Path(tempfile.mkdtemp(dir=options.data))
    try:
        source = write_dataset(work / "source", [8 * MiB] * FILES).root
        seconds: dict[float, list[float]] = {0.0: [], options.rate: []}
        for number in range(options.rounds):
            for rate, found in seconds.items():
                found.append(first_batch(source, work / f"{number}-{rate:g}", rate))
        for rate, found in seconds.items():
            shown = ", ".join(f"{each:.2f}" for each in sorted(found))
            print(f"{rate:g} connections a second: first batch after {statistics.median(found):.2f} s ({shown})")
    finally:
        shutil.rmtree(work)


if __name__ == "__main__":
    main()
