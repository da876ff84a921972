"""One process of a broadcast: `broadcast_rank.py DATASET DEST LOG [FAULT]`, started by mpiexec or gloo_ranks.py.

STRATEGY in the environment names another strategy.

FAULT is `hang`, `full` or `absent`, on node1, or `stop first|last HOST`: that host falls silent in its first or last
fsync.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from dlio.cluster import liveness
from dlio.cluster.topology import Topology
from dlio.dataset.manifest import Manifest
from dlio.errors import DlioError
from dlio.stage.comm import base, progress_channel
from dlio.stage.comm.connect import start_together
from dlio.stage.job import Listeners, NodeProgress
from dlio.stage.run import run

dataset, dest, log, *fault = sys.argv[1:]
host, rank = socket.gethostname(), Topology.from_env().rank


def leave(name: str, text: str) -> None:
    """Leaves a file in the log's folder, whole or not at all."""
    (Path(log) / f".{name}").write_text(text)
    (Path(log) / f".{name}").rename(Path(log) / name)


leave(f"{rank}.pid", str(os.getpid()))
signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # Hydra's word that another process ended
progress_channel.FIRST_SECONDS, progress_channel.SEND_SECONDS = 0.1, 0.05
liveness.LOST_SECONDS = float(os.environ.get("LOST_SECONDS", "20"))
base.ARRIVAL_SECONDS = liveness.LOST_SECONDS
if host == "node1" and fault == ["absent"]:
    sys.exit()
written, sync = 0, os.fsync


def fsync(descriptor: int) -> None:
    due = {"first": lambda: True, "last": lambda: written == Manifest.load(dataset).num_bytes}
    if fault[:1] == ["stop"] and host == fault[2] and due[fault[1]]():
        os.kill(os.getpid(), signal.SIGSTOP)
    sync(descriptor)


os.fsync = fsync


def report(num_bytes: int) -> None:
    global written
    written += num_bytes
    if host == "node1" and fault == ["hang"]:
        (Path(log) / "hanging").touch()
        time.sleep(1000)
    if host == "node1" and fault == ["full"]:
        hog = Path(dest) / host / "hog"
        if not hog.exists():
            hog.write_bytes(bytes(10 << 20))


watched: list[list[tuple[str, int, int]]] = []


def watch(nodes: Sequence[NodeProgress]) -> None:
    watched.append([(node.host, node.total_bytes, node.left_bytes) for node in nodes])
    if len(nodes) == 2:
        (Path(log) / "heard").touch()


try:
    topology = Topology.from_env()
    if nodes := int(os.environ.get("NUM_NODES", "0")):  # each of one process, which mpiexec takes for one node
        topology = replace(topology, local_rank=0, local_world_size=1, node_rank=topology.rank, num_nodes=nodes)
    start_together(topology)
    strategy = os.environ.get("STRATEGY", "broadcast")
    listeners = Listeners(report=report, watch=watch)
    _, summary = run(dataset, Path(dest) / host, strategy=strategy, topology=topology, listeners=listeners)
    found: dict[str, object] = asdict(summary) | {"watched": watched, "reported": written}
except DlioError as error:
    found = {"error": f"{type(error).__name__}: {error}", "exit_code": error.exit_code}
leave(f"{host}.{rank}.json", json.dumps(found))
