"""Measures how much later the first batch comes while another user floods the ports of a job's agents.

    python benchmarks/live_flood.py --data /tmp/bench

Two nodes of one job stage over the loopback interface. Then a loader of the second node reads a part of each file, half
of which the first node owns. In turns nobody disturbs them, and another process opens 1,000 connections a second to
both ports, from the address that the nodes have, and keeps as many as it can: all that another user's could do.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import shutil
import signal
import socket
import statistics
import struct
import sys
import tempfile
import time
from collections import deque
from contextlib import closing, suppress
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from dlio.cluster.topology import Topology
from dlio.stage.client.client import Client
from dlio.stage.client.start import ensure_agent
from dlio.stage.copies.live_folder import LiveFolder, end_agents
from tests.helpers.staging import MiB, write_dataset

HELD, BATCH_BYTES, FILES = 400, 100_000, 16
FLOOD_SECONDS = 30.0  # at most
_OPENED = struct.Struct("=Qd")  # connections, and the seconds that they took


def ports(meet: Path) -> list[tuple[str, int]]:
    """Returns where the agents of a job listen, as /proc/net/tcp tells everybody."""
    found = []
    for path in meet.rglob("node-*.json"):
        with suppress(ValueError, OSError):
            found.append(tuple(json.loads(path.read_text())["address"]))
    return found


def flood(meet: Path, rate: float, opened: mmap.mmap) -> None:
    """Opens connections until it is killed, or for half a minute; `opened` says how many, and for how long."""
    with suppress(PermissionError):
        os.nice(-15)  # no other load of the machine slows it
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
        _OPENED.pack_into(opened, 0, count, spent)
        time.sleep(max(0.0, count / rate - spent))


def flooding(meet: Path, rate: float, opened: mmap.mmap) -> int:
    """Returns the process of a neighbour that floods the ports of a job."""
    reader = os.open(meet, os.O_RDONLY | os.O_DIRECTORY)
    process = os.fork()
    if process == 0:
        try:
            flood(Path(f"/proc/self/fd/{reader}"), rate, opened)
        finally:
            os._exit(0)
    os.close(reader)
    return process


def first_batch(source: Path, work: Path, rate: float) -> tuple[float, float]:
    """Returns the seconds from a second node's start to its first batch, and the connections in each of them."""
    meet = work / "meet"
    meet.mkdir(mode=0o700, parents=True)
    os.environ |= {"DLIO_MEET": str(meet), "DLIO_INTERFACE": "127.0.0.1", "DLIO_LAUNCHER": "single"}
    folders = [ensure_agent(source, work / "node0", topology=Topology(0, 2, 0, 1, 0, 2))]
    opened = mmap.mmap(-1, _OPENED.size)  # shared with the neighbour
    neighbour = flooding(meet, rate, opened) if rate else 0
    try:
        time.sleep(1.0)  # the flood is under way
        began = time.perf_counter()
        folders.append(ensure_agent(source, work / "node1", topology=Topology(1, 2, 0, 1, 1, 2)))
        with closing(Client(folders[1])) as client:
            for number in range(FILES):
                client.read(number, [(0, BATCH_BYTES)], memoryview(bytearray(BATCH_BYTES)))
            seconds = time.perf_counter() - began
        count, spent = _OPENED.unpack_from(opened)
        return seconds, count / spent if spent else 0.0
    finally:
        if neighbour:
            os.kill(neighbour, signal.SIGKILL)
            os.waitpid(neighbour, 0)
        end_agents([LiveFolder(folder) for folder in folders])


def main() -> None:
    parser = argparse.ArgumentParser(description="The first batch while a neighbour floods the agents' ports.")
    parser.add_argument("--data", type=Path, required=True, help="a folder for the source and the copies")
    parser.add_argument("--rate", type=float, default=1000.0, help="connections a second")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    work = Path(tempfile.mkdtemp(dir=options.data))
    try:
        source = write_dataset(work / "source", [8 * MiB] * FILES).root
        results: dict[float, list[tuple[float, float]]] = {0.0: [], options.rate: []}
        for number in range(options.rounds):
            for rate, found in results.items():
                found.append(first_batch(source, work / f"{number}-{rate:g}", rate))
        for found in results.values():
            seconds, rates = zip(*found, strict=True)
            shown = ", ".join(f"{each:.2f}" for each in sorted(seconds))
            median = statistics.median(seconds)
            print(f"{min(rates):.0f} or more connections a second: first batch after {median:.2f} s ({shown})")
    finally:
        shutil.rmtree(work)


if __name__ == "__main__":
    main()
