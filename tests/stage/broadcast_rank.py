"""One process of a broadcast: `broadcast_rank.py DATASET DEST LOG [FAULT]`, started by mpiexec or gloo_ranks.py.

STRATEGY in the environment names another strategy. The report tells how many of the data set's files were opened.

FAULT is `hang`, `full`, `full end` or `absent`, on node1, or `stop first|last|ready|after|end HOST`: that host falls
silent in its first or last fsync, when all have said that they are ready, when it has done its part, or when all have
done theirs. With `full end` the disk is full once every byte is received, before the last file is closed.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path

from dlio.cluster import liveness
from dlio.cluster.topology import Topology
from dlio.dataset.manifest import NAME, Manifest
from dlio.errors import DlioError
from dlio.stage.comm import mpi, progress_channel
from dlio.stage.comm.connect import start_together
from dlio.stage.comm.mpi_end import ending_mpi
from dlio.stage.job import Listeners, NodeProgress
from dlio.stage.run import run
from dlio.stage.strategies import broadcast
from dlio.stage.transfer.new_file import PAGE_BYTES

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
liveness.ARRIVAL_SECONDS = liveness.LOST_SECONDS
if host == "node1" and fault == ["absent"]:
    sys.exit()
written, sync = 0, os.fsync


def fsync(descriptor: int) -> None:
    stop_if("first")
    if fault[:2] == ["stop", "last"] and written == Manifest.load(dataset).num_bytes:
        stop_if("last")
    sync(descriptor)


def stop_if(moment: str) -> None:
    if fault == ["stop", moment, host]:
        os.kill(os.getpid(), signal.SIGSTOP)


def raise_first_or_stop(problems: Sequence[str], nodes: Sequence[str]) -> None:
    stop_if("ready")
    raise_first(problems, nodes)


os.fsync = fsync
raise_first, broadcast._raise_first = broadcast._raise_first, raise_first_or_stop


def report(num_bytes: int) -> None:
    global written
    written += num_bytes
    if host == "node1" and fault == ["hang"]:
        (Path(log) / "hanging").touch()
        time.sleep(1000)
    hog = Path(dest) / host / "hog"
    if host == "node1" and fault == ["full"] and not hog.exists():
        hog.write_bytes(bytes(10 << 20))
    if host == "node1" and fault == ["full", "end"] and written == Manifest.load(dataset).num_bytes:
        with suppress(OSError), hog.open("wb", buffering=0) as file:
            while file.write(bytes(PAGE_BYTES)):
                pass


opened: list[str] = []


def note_open(event: str, arguments: tuple[object, ...]) -> None:
    """Notes each file of the data set that os.open opens, the manifest left out."""
    if event == "open" and arguments[1] is None:
        path = Path(os.fsdecode(arguments[0])) if not isinstance(arguments[0], int) else Path()  # type: ignore[arg-type]
        if path.is_relative_to(dataset) and path.name != NAME:
            opened.append(path.name)


sys.addaudithook(note_open)
watched: list[list[tuple[str, int, int]]] = []


def watch(nodes: Sequence[NodeProgress]) -> None:
    watched.append([(node.host, node.total_bytes, node.left_bytes) for node in nodes])
    if len(nodes) == 2:
        (Path(log) / "heard").touch()


def stage() -> dict[str, object]:
    """Returns what this process is to report."""
    topology = Topology.from_env()
    if nodes := int(os.environ.get("NUM_NODES", "0")):  # each of one process, which mpiexec takes for one node
        topology = replace(topology, local_rank=0, local_world_size=1, node_rank=topology.rank, num_nodes=nodes)
    strategy, listeners = os.environ.get("STRATEGY", "broadcast"), Listeners(report=report, watch=watch)
    folder = Path(dest) if strategy == "stripe" else Path(dest) / host
    try:
        start_together(topology)
        _, summary = run(dataset, folder, strategy=strategy, topology=topology, listeners=listeners)
    except DlioError as error:
        return {"error": f"{type(error).__name__}: {error}", "exit_code": error.exit_code}
    return asdict(summary) | {"watched": watched, "reported": written, "opened": opened}


try:
    with ending_mpi():
        leave(f"{host}.{rank}.json", json.dumps(stage()))
        stop_if("after")
        if fault == ["stop", "end", host]:
            mpi.MpiRing.close = lambda _: stop_if("end")  # type: ignore[method-assign]
except DlioError as error:
    leave(f"{host}.lost", str(error))
    sys.exit(error.exit_code)
