"""The simulator and real runs on this machine: strategies on 1 to 8 local nodes, with a slow source and slow links.

    python benchmarks/predicted_here.py [--strategies replicate,partition,broadcast] [--json]

A node is a process with a host name and its own network namespace; its link is throttled by tc, the source by
slow_source.py. Nodes write to memory. Needs root, ip and tc, and FUSE; takes about six minutes.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from stage import slow, write_dataset

from dlio.cluster.topology import Topology
from dlio.dataset.manifest import Manifest
from dlio.stage import simulate
from dlio.stage.planning.cost import Machine
from dlio.stage.run import run

MB = 10**6
FREE = 10**12
PAYLOAD = 1448 / (1514 + 66 / 2)  # of what tc counts: an Ethernet frame, and half a frame that acknowledges what came
CLONE_NEWUTS, CLONE_NEWNET = 0x04000000, 0x40000000
#: Strategy, nodes, shards, MB of the data set, and MB/s of the source and of a link; 0 for an unlimited link.
CASES = [
    *(("replicate", nodes, 48, 240, 40, 0) for nodes in (1, 2, 4, 8)),
    *(("partition", nodes, 48, 240, 20, 0) for nodes in (1, 2, 4, 8)),
    *(("broadcast", nodes, 48, 240, 10, 0) for nodes in (2, 4, 8)),
    *(("broadcast", nodes, 48, 48, 20, 2) for nodes in (2, 4, 8)),
    ("broadcast", 4, 24, 768, 100, 20),  # shards of several pieces
    ("broadcast", 8, 24, 384, 100, 6),  # the same; several nodes read each shard
]


def main() -> None:
    """Prints a row for each case."""
    parser = argparse.ArgumentParser(description="Compares the simulator with real runs on local nodes.")
    parser.add_argument("--strategies", default="replicate,partition,broadcast")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = []
    if not options.json:
        print("| strategy | nodes | shards | MB | source, MB/s | links, MB/s | simulated, s | measured, s | error |")
        print("|" + "---|" * 9, flush=True)
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR", "/var/tmp")) as folder, networked(8):
        sources = {
            (shards, size): write_dataset(Path(folder) / f"{shards} {size}", shards, size * MB // shards)
            for shards, size in {case[2:4] for case in CASES}
        }
        for strategy, nodes, shards, size, source_rate, link_rate in CASES:
            if strategy not in options.strategies.split(","):
                continue
            machine = Machine(
                nodes, FREE, source=source_rate * MB, client=1e9, network=link_rate * PAYLOAD * MB or 1e9, local=1e9
            )
            predicted = simulate(sources[shards, size], machine, strategy).seconds
            for node in range(nodes if link_rate else 0):
                shape(node, link_rate * MB)
            measured = seconds_of(sources[shards, size], Path(folder), strategy, machine)
            case = strategy, nodes, shards, size, source_rate, link_rate
            rows.append((*case, predicted, measured, predicted / measured - 1))
            if not options.json:
                print("| {} | {} | {} | {} | {} | {} | {:.2f} | {:.2f} | {:+.1%} |".format(*rows[-1]), flush=True)
    if options.json:
        print(json.dumps(rows))


def seconds_of(source: Manifest, folder: Path, strategy: str, machine: Machine) -> float:
    """Returns how long the slowest of real nodes takes."""
    nodes, log = machine.num_nodes, Path(tempfile.mkdtemp(dir=folder))
    dest = Path(tempfile.mkdtemp(dir="/dev/shm"))
    with slow(source.root, folder, "--bandwidth", str(machine.source / MB)) as mounted:
        mounted_source = Manifest.load(mounted)  # read before the clock starts: it is no part of the plan
        children = [forked(mounted_source, dest / str(node), strategy, node, nodes, log) for node in range(nodes)]
        for child in children:
            os.waitpid(child, 0)
    shutil.rmtree(dest)
    return max(float((log / str(node)).read_text()) for node in range(nodes))


def forked(source: Manifest, dest: Path, strategy: str, node: int, nodes: int, log: Path) -> int:
    """Returns the id of the process of a node, which writes to `log` how long it took."""
    child = os.fork()
    if child:
        return child
    with Path(f"/run/netns/dlio{node}").open() as network:
        entered = ctypes.CDLL(None).setns(network.fileno(), CLONE_NEWNET)
    if entered or ctypes.CDLL(None).unshare(CLONE_NEWUTS):
        os._exit(1)
    socket.sethostname(f"node{node}")
    os.environ |= {"DLIO_INTERFACE": "eth0", "DLIO_MEET": str(log)}
    topology = replace(Topology(node, nodes, 0, 1, node, nodes), launcher="env")
    try:
        summary = run(source, dest, strategy=strategy, topology=topology)[1]
        (log / str(node)).write_text(str(summary.seconds))
    finally:
        os._exit(0)


@contextmanager
def networked(nodes: int) -> Iterator[None]:
    """Makes network namespaces `dlio0`, `dlio1`, ... whose links `eth0` meet in a bridge."""
    try:
        ip("netns add dliosw", "-n dliosw link add br0 type bridge", "-n dliosw link set br0 up")
        for node in range(nodes):
            ip(
                f"netns add dlio{node}",
                f"-n dlio{node} link set lo up",
                f"link add eth0 netns dlio{node} type veth peer name p{node} netns dliosw",
                f"-n dliosw link set p{node} master br0",
                f"-n dliosw link set p{node} up",
                f"-n dlio{node} addr add 10.78.0.{node + 1}/24 dev eth0",
                f"-n dlio{node} link set eth0 up",
            )
        yield
    finally:
        for name in ("dliosw", *(f"dlio{node}" for node in range(nodes))):
            subprocess.run(["ip", "netns", "del", name], check=False)


def ip(*commands: str) -> None:
    for command in commands:
        subprocess.run(["ip", *command.split()], check=True)


def shape(node: int, rate: float) -> None:
    """Throttles what a node sends; what it receives is then throttled by its neighbour."""
    small = "ip link set eth0 gso_max_segs 1"  # packets, so that short messages do not wait for long ones
    limit = f"tc qdisc replace dev eth0 root tbf rate {int(8 * rate)}bit burst 16kb latency 20ms"
    for command in (small, limit):
        subprocess.run(["ip", "netns", "exec", f"dlio{node}", *command.split()], check=True)


if __name__ == "__main__":
    main()
