"""Runs a script of `tests/loaders/jobs` as the ranks of a job, as a launcher does."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from pathlib import Path
from typing import Any

_JOBS = Path(__file__).with_name("jobs")
_REPOSITORY = Path(__file__).parents[2]
_LIMIT_SECONDS = 280
_LAUNCHERS = ("SLURM_", "PMI_", "PMIX_", "OMPI_", "HOROVOD_", "TF_CONFIG", "KERAS_BACKEND")


def free_ports(count: int) -> list[int]:
    """Returns ports of this machine that nobody listens on."""
    opened = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports: list[int] = [server.getsockname()[1] for server in opened]
    for server in opened:
        server.close()
    return ports


def torch_ranks(world_size: int) -> list[dict[str, str]]:
    """Returns what torchrun tells each rank of a job on one node."""
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_ports(1)[0])}
    shared |= {"WORLD_SIZE": str(world_size), "LOCAL_WORLD_SIZE": str(world_size)}
    return [shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(world_size)]


def run_job(job: str, data: Path, folder: Path, processes: list[dict[str, str]]) -> list[Any]:
    """Runs `jobs/JOB.py DATA FOLDER` with each of the environments, and returns what its ranks report.

    A process that fails ends the others, and the test with what it said.
    """
    folder.mkdir(exist_ok=True)
    logs = [folder / f"process{number}.log" for number in range(len(processes))]
    command = [sys.executable, str(_JOBS / f"{job}.py"), str(data), str(folder)]
    started = [_start(command, environment, log) for environment, log in zip(processes, logs, strict=True)]
    try:
        with ThreadPoolExecutor(len(started)) as pool:
            for ended in as_completed([pool.submit(process.wait, _LIMIT_SECONDS) for process in started]):
                if ended.exception() or ended.result():
                    _end(started)
    finally:
        _end(started)
    failed = [log.read_text() for log, process in zip(logs, started, strict=True) if process.returncode]
    assert not failed, "\n\n".join(failed)
    return [json.loads(report.read_text()) for report in sorted(folder.glob("rank*.json"))]


def _start(command: list[str], environment: Mapping[str, str], log: Path) -> subprocess.Popen[bytes]:
    """Starts a process with this one's environment, less what a launcher told it."""
    own = {name: value for name, value in os.environ.items() if not name.startswith(_LAUNCHERS)}
    fixed = {"PYTHONPATH": str(_REPOSITORY), "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    with log.open("wb") as out:
        env = own | fixed | environment
        return subprocess.Popen(command, env=env, stdout=out, stderr=subprocess.STDOUT, start_new_session=True)


def _end(processes: list[subprocess.Popen[bytes]]) -> None:
    """Ends the processes and what they started."""
    for process in processes:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def photos_of(ranks: list[list[list[int]]]) -> list[int]:
    """Returns the photos in the batches of all ranks, sorted, after a check that their steps were equal."""
    sizes = {tuple(map(len, batches)) for batches in ranks}
    assert len(sizes) == 1, f"ranks took different steps: {sizes}"
    return sorted(photo for batches in ranks for batch in batches for photo in batch)
