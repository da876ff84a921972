"""How each engine is started, for tests that hold all of them to the same."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from dlio import executors

JOB = Path(__file__).with_name("job.py")
MPIEXEC = shutil.which("mpiexec", path=f"{sysconfig.get_path('scripts')}:{os.environ['PATH']}")
SECONDS = 120  # a run takes less than a tenth of it
RAY_TOKEN = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": uuid.uuid4().hex}


@dataclass(frozen=True)
class Engine:
    """Starts commands with an engine of two workers, whose processes can be found by a mark in their environment."""

    name: str
    address: str = ""
    variables: dict[str, str] = field(default_factory=dict)
    mark: str = field(default_factory=lambda: uuid.uuid4().hex)

    def command(self, *arguments: object, workers: int = 2) -> list[str]:
        """Returns the command line of a Python script or module."""
        ranks = [str(MPIEXEC), "-n", str(workers + 1)] if self.name == "mpi" else []
        return [*ranks, sys.executable, *map(str, arguments)]

    def workers(self, workers: int) -> str:
        """Returns the number that is passed on; nothing where the launcher or a cluster decides."""
        return "" if self.name == "mpi" or self.address else str(workers)

    def pack_command(self, source: Path, out: Path, *options: str, workers: int = 2) -> list[str]:
        """Returns the command line of `dlio pack`."""
        number = self.workers(workers)
        chosen = ["--engine", self.name, *(["--workers", number] if number else [])]
        chosen += ["--engine-address", self.address] if self.address else []
        return self.command("-m", "dlio", "pack", source, out, "--quiet", *chosen, *options, workers=workers)

    def run(self, command: list[str]) -> subprocess.CompletedProcess[str]:
        """Runs a command to its end."""
        return subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, env=self.environ())

    def scenario(self, names: str, folder: Path) -> subprocess.CompletedProcess[str]:
        """Runs scenarios of job.py, with commas between their names."""
        return self.run(self.command(JOB, names, self.name, self.workers(2), self.address, folder))

    def results(self, names: str, folder: Path) -> dict[str, Any]:
        """Returns the results of scenarios of job.py, which must end well."""
        done = self.scenario(names, folder)
        assert done.returncode == 0, done.stderr
        return json.loads((folder / "result.json").read_text())

    def environ(self) -> dict[str, str]:
        """Returns the environment of the processes."""
        return {**os.environ, **self.variables, "DLIO_TEST_MARK": self.mark, "UCX_LOG_LEVEL": "error"}

    def processes(self) -> dict[int, str]:
        """Returns the command lines of all processes that bear the mark."""
        found = {}
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                if f"DLIO_TEST_MARK={self.mark}".encode() in (entry / "environ").read_bytes().split(b"\0"):
                    found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:  # it has ended, or is a zombie
                continue
        return found

    def assert_nothing_runs(self, but: str = "nothing") -> None:
        """Waits for the last processes to end, but for those with this in their name, and fails if some do not."""
        deadline = time.monotonic() + 30
        while (left := [line for line in self.processes().values() if but not in line]) and time.monotonic() < deadline:
            time.sleep(0.02)
        assert left == []


@pytest.fixture(scope="session")
def ray_address() -> Iterator[str]:
    """The address of a Ray cluster with two processors: one for the session, since it takes seconds to start."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    folder = Path(tempfile.mkdtemp(prefix="dlio-ray-"))  # Ray's sockets need a short path
    options = ["--head", "--block", f"--port={port}", "--num-cpus=2", f"--object-store-memory={100 << 20}"]
    options += ["--node-ip-address=127.0.0.1", "--include-dashboard=false", "--disable-usage-stats"]
    options += [f"--temp-dir={folder}"]
    with (folder / "log").open("w") as log:
        command = [sys.executable, "-m", "ray.scripts.scripts", "start", *options]
        server = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=os.environ | RAY_TOKEN)
    try:
        deadline = time.monotonic() + 60
        while "Ray runtime started" not in (folder / "log").read_text() and time.monotonic() < deadline:
            assert server.poll() is None, (folder / "log").read_text()
            time.sleep(0.05)
        yield f"127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module", params=executors.names())
def engine(request) -> Engine:
    """Every engine, found by name; Ray's is a running cluster."""
    if request.param == "mpi" and MPIEXEC is None:
        pytest.skip("needs mpiexec")
    if request.param in ("dask", "ray", "mpi"):
        pytest.importorskip({"dask": "distributed", "mpi": "mpi4py"}.get(request.param, request.param))
    if request.param == "ray":
        return Engine("ray", request.getfixturevalue("ray_address"), RAY_TOKEN)
    return Engine(request.param)
