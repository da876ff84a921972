"""Runs a script of `tests/loaders/jobs` as the ranks of a job, as a launcher does."""

from __future__ import annotations

import json
import os
import socket
import time
from pathlib import Path
from typing import Any

from tests.helpers import fork_server

_JOBS = Path(__file__).with_name("jobs")
_LIMIT_SECONDS = 280
_LAUNCHERS = ("SLURM_", "PMI_", "PMIX_", "OMPI_", "HOROVOD_", "TF_CONFIG", "KERAS_BACKEND")

#: What the processes of jobs share, imported once. TensorFlow loads Keras, for itself.
_TORCH = ("accelerate", "lightning", "transformers.trainer", "dlio.loaders.torch")
_TENSORFLOW = ("tensorflow", "tf_keras", "dlio.loaders.tensorflow")
_IMPORTED = {
    "accelerate_job": _TORCH,
    "ddp_job": _TORCH,
    "hf_trainer_job": _TORCH,
    "jax_job": ("jax", "dlio.loaders.jax"),
    "keras_job": _TENSORFLOW,
    "lightning_job": _TORCH,
    "mirrored_job": _TENSORFLOW,
    "multi_worker_job": _TENSORFLOW,
}


def free_ports(count: int) -> list[int]:
    """Returns ports of this machine that nobody listens on."""
    opened = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports: list[int] = [server.getsockname()[1] for server in opened]
    for server in opened:
        server.close()
    return ports


def torch_ranks(world_size: int) -> list[dict[str, str]]:
    """Returns the variables that torchrun sets for each rank of a job on one node."""
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_ports(1)[0])}
    shared |= {"WORLD_SIZE": str(world_size), "LOCAL_WORLD_SIZE": str(world_size)}
    return [shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(world_size)]


def run_job(job: str, data: Path, folder: Path, processes: list[dict[str, str]]) -> list[Any]:
    """Runs `jobs/JOB.py DATA FOLDER` with each of the environments, and returns what its ranks report.

    If a process fails, the others are ended, and the test fails with its output.
    """
    own = {name: value for name, value in os.environ.items() if not name.startswith(_LAUNCHERS)}
    fixed = {"PYTHONPATH": str(fork_server.ROOT), "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    started = []
    for number, environment in enumerate(processes):
        log = folder / f"process{number}"
        log.mkdir(parents=True)
        arguments, environ = [str(data), str(folder)], own | fixed | environment
        modules = () if environ.get("KERAS_BACKEND") == "torch" else _IMPORTED[job]
        started.append(fork_server.start(modules, _JOBS / f"{job}.py", arguments, log, environ))
    try:
        codes = _wait(started)
    finally:
        for process in started:
            process.kill()
    assert not any(codes), "\n\n".join(process.said() for process in started)
    return [json.loads(report.read_text()) for report in sorted(folder.glob("rank*.json"))]


def _wait(started: list[fork_server.Job]) -> list[int | None]:
    """Returns the exit codes, None for those that run when another has failed."""
    deadline = time.monotonic() + _LIMIT_SECONDS
    while None in (codes := [process.poll() for process in started]) and not any(codes):
        if time.monotonic() > deadline:
            return [1]
        time.sleep(0.01)
    return codes


def photos_of(ranks: list[list[list[int]]]) -> list[int]:
    """Returns the photos in the batches of all ranks, sorted, after a check that their steps were equal."""
    sizes = {tuple(map(len, batches)) for batches in ranks}
    assert len(sizes) == 1, f"ranks took different steps: {sizes}"
    return sorted(photo for batches in ranks for batch in batches for photo in batch)
