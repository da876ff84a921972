"""One process of a job that stages, `broadcast_rank.py DATASET DEST LOG [FAULT]`: by mpiexec or folder_ranks.py.

It begins once TOGETHER processes have come, if that is in the environment.

It may open OPEN_FILES more files before it stages, if that is in the environment.

STRATEGY in the environment names another strategy. The report has the files of the data set that were opened, and its
folders that were listed.

FAULT is `hang`, `full` or `absent`, on node1, `late` on node2, or `stop first|last|agree|finalize|agreed HOST`: that
host falls silent in its first or last fsync, before MPI's processes have agreed, while MPI ends, or once it has ended.
"""

from __future__ import annotations

import json
import logging
import os
import resource
import signal
import socket
import sys
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict, replace
from pathlib import Path

from dlio.cluster import liveness, mpi
from dlio.cluster.topology import Topology
from dlio.dataset.manifest import NAME, Manifest
from dlio.errors import DlioError
from dlio.stage.engine import foreground
from dlio.stage.meeting import meeting
from dlio.stage.meeting.peer import Peer
from dlio.stage.planning.job import Listeners
from dlio.stage.run import run

dataset, dest, log, *fault = sys.argv[1:]
host, rank = socket.gethostname(), Topology.from_env().rank
logging.basicConfig(level=logging.WARNING)


def leave(name: str, text: str) -> None:
    """Leaves a file in the log's folder, whole or not at all."""
    (Path(log) / f".{name}").write_text(text)
    (Path(log) / f".{name}").rename(Path(log) / name)


leave(f"{rank}.pid", str(os.getpid()))
signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # Hydra's signal that another process ended
foreground.FIRST_SECONDS, foreground.BEAT_SECONDS = 0.1, 0.05
liveness.LOST_SECONDS = float(os.environ.get("LOST_SECONDS", "20"))
meeting.JOIN_SECONDS = float(os.environ.get("JOIN_SECONDS", "5"))
meeting.LATE_SECONDS = float(os.environ.get("LATE_SECONDS", "60"))
liveness.ARRIVAL_SECONDS = float(os.environ.get("ARRIVAL_SECONDS", "180"))
while len(list(Path(log).glob("*.pid"))) < int(os.environ.get("TOGETHER", "0")):
    time.sleep(0.01)
if host == "node2" and fault == ["late"]:
    while not list((Path(dest) / "node1").glob("dlio/*/.dlio/live/agent.json")):
        time.sleep(0.01)
    time.sleep(1)
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


os.fsync = fsync


def report(num_bytes: int) -> None:
    global written
    written += num_bytes
    if host == "node1" and fault == ["hang"]:
        time.sleep(0.5)  # by now the others know it
        (Path(log) / "hanging").touch()
        time.sleep(1000)
    hog = Path(dest) / host / "hog"
    if host == "node1" and fault == ["full"] and not hog.exists():
        hog.write_bytes(bytes(10 << 20))


opened: list[str] = []
listed: list[str] = []


def note_open(event: str, arguments: tuple[object, ...]) -> None:
    """Notes each file of the data set that os.open opens, the manifest left out, and each folder that is listed."""
    if event == "os.listdir" and Path(str(arguments[0])).is_relative_to(dataset):
        listed.append(str(arguments[0]))
    if event == "open" and arguments[1] is None:
        path = Path(os.fsdecode(arguments[0])) if not isinstance(arguments[0], int) else Path()  # type: ignore[arg-type]
        if path.is_relative_to(dataset) and path.name != NAME:
            opened.append(path.name)


sys.addaudithook(note_open)
watched: list[list[tuple[str, int, int]]] = []


def watch(nodes: Sequence[Peer]) -> None:
    watched.append([(node.owner.host, node.lacked, node.lacks) for node in nodes])
    if len(nodes) == 2:
        (Path(log) / "heard").touch()


def stage() -> dict[str, object]:
    """Returns what this process is to report."""
    topology = Topology.from_env()
    if nodes := int(os.environ.get("NUM_NODES", "0")):  # each of one process, which mpiexec takes for one node
        topology = replace(topology, local_rank=0, local_world_size=1, node_rank=topology.rank, num_nodes=nodes)
    strategy, listeners = os.environ.get("STRATEGY", "broadcast"), Listeners(report=report, watch=watch)
    folder = Path(dest) if strategy == "stripe" else Path(dest) / host
    if more := int(os.environ.get("OPEN_FILES", "0")):
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + more, most))  # noqa: PTH208
    try:
        with mpi.ending_early(topology) if strategy in ("broadcast", "auto") else nullcontext():
            _, summary = run(dataset, folder, strategy=strategy, topology=topology, listeners=listeners)
    except DlioError as error:
        return {"error": f"{type(error).__name__}: {error}", "exit_code": error.exit_code}
    return asdict(summary) | {"watched": watched, "reported": written, "opened": opened, "listed": listed}


plain_end = mpi.Processes.end


def end(self: mpi.Processes) -> None:
    stop_if("agree")
    if fault == ["stop", "finalize", host]:
        self._mpi.Finalize = lambda: stop_if("finalize")  # type: ignore[attr-defined]
    plain_end(self)
    stop_if("agreed")


mpi.Processes.end = end  # type: ignore[method-assign]
leave(f"{host}.{rank}.json", json.dumps(stage()))
