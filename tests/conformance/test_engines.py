"""Every engine of dlio, found by its name; all are real."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import dlio
from dlio import executors
from dlio.sources import image_folder
from dlio.testing.container import content
from dlio.testing.engine_runner import EngineRunner
from dlio.testing.engines import EngineTests
from dlio.testing.images import make_image_folder
from tests.helpers.mpi import MPI, MPIEXEC
from tests.helpers.rounds import ROUNDS
from tests.loaders.ranks import free_ports

PACKAGES = {"dask": "distributed", "mpi": "mpi4py", "ray": "ray", "spark": "pyspark"}
RAY_TOKEN = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": uuid.uuid4().hex}


@pytest.fixture(scope="session")
def ray_address() -> Iterator[str]:
    """The address of a Ray cluster with two processors: one for the session, since it takes seconds to start."""
    port, agent_port = free_ports(2)  # the latter is a fixed one otherwise, which the former may be
    folder = Path(tempfile.mkdtemp(prefix="dlio-ray-"))  # Ray's sockets need a short path
    options = ["--head", "--block", f"--port={port}", "--num-cpus=2", f"--object-store-memory={100 << 20}"]
    options += ["--node-ip-address=127.0.0.1", "--include-dashboard=false", "--disable-usage-stats"]
    options += [f"--temp-dir={folder}", f"--dashboard-agent-listen-port={agent_port}"]
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


#: Spark takes 8 s of CPU time to start, so tests/executors/test_spark.py tests all its promises at once.
HERE = ("serial", "processes", "mpi")
ENGINES = [
    pytest.param(name, marks=() if name in HERE else pytest.mark.jobs)
    for name in executors.names()
    if name != "spark" or ROUNDS > 1
]


class TestEveryEngine(EngineTests):
    @pytest.fixture(params=ENGINES)
    def engine(self, request: pytest.FixtureRequest) -> EngineRunner:
        """Every engine, found by name; Ray's is a running cluster."""
        if request.param == "mpi" and MPIEXEC is None:
            pytest.skip("needs mpiexec")
        if request.param in PACKAGES:
            pytest.importorskip(PACKAGES[request.param])
        if request.param == "spark":
            return EngineRunner("spark", ends_late=True)
        if request.param == "ray":
            return EngineRunner("ray", request.getfixturevalue("ray_address"), variables=RAY_TOKEN, ends_late=True)
        is_serial = request.param == "serial"
        return (
            MPI if request.param == "mpi" else EngineRunner(request.param, in_caller=is_serial, one_at_a_time=is_serial)
        )

    def test_reads_side_by_side_from_slow_storage_and_skips_what_fails(
        self, engine: EngineRunner, tmp_path: Path, slow_source: Callable[..., Path]
    ) -> None:
        make_image_folder(tmp_path / "in", {"a": 40, "b": 40})
        mounted = slow_source(tmp_path / "in", "--latency-ms", "30", "--fail", "0013", "--most", str(tmp_path / "most"))
        options = ["--format", "recordio", "--num-shards", "2", "--on-error", "skip"]
        done = engine.run(engine.pack_command(mounted, tmp_path / "out", *options))
        assert (done.returncode, done.stderr.count("Input/output error")) == (1, 2)
        assert int((tmp_path / "most").read_text()) > 4  # two workers alone would have two
        dlio.pack(
            image_folder(mounted), tmp_path / "whole", format="recordio", num_shards=2, on_error="skip", engine="serial"
        )
        assert content(tmp_path / "out") == content(tmp_path / "whole")
