"""An engine's errors if its package, library or cluster is missing; running clusters."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dlio import executors
from dlio.cli import main
from dlio.errors import UsageError
from dlio.testing.engine_runner import EngineRunner
from tests.helpers.packing import content

PACKAGES = {"dask": "distributed", "mpi": "mpi4py", "ray": "ray", "spark": "pyspark"}


def pack(engine: EngineRunner, *options: object, before: str = "") -> subprocess.CompletedProcess[str]:
    """Runs `dlio pack` with this engine after some statements."""
    arguments = ["pack", *map(str, options), "--format", "tfrecord", "--engine", engine.name, "--quiet"]
    script = f"import sys; {before or 'pass'}; from dlio.cli import main; sys.exit(main({arguments}))"
    return engine.run([sys.executable, "-c", script])


@pytest.mark.parametrize("name", PACKAGES)
def test_a_missing_package_gives_the_line_that_installs_it(photos, tmp_path, name, monkeypatch, capsys):
    package = PACKAGES[name]
    monkeypatch.setitem(sys.modules, package, None)
    assert main(["pack", str(photos), str(tmp_path / "out"), "--engine", name, "--quiet"]) == 5
    line = rf"dlio: the engine {name} needs the package '{package}': pip install '{package}>=[0-9.]+'\n"
    assert re.fullmatch(line, capsys.readouterr().err)


def test_a_missing_mpi_library_is_told(photos, tmp_path):
    pytest.importorskip("mpi4py")
    done = pack(EngineRunner("mpi", variables={"MPI4PY_LIBMPI": "/nowhere/libmpi.so"}), photos, tmp_path / "out")
    assert done.returncode == 5
    assert done.stderr.startswith("dlio: cannot load MPI library")
    assert done.stderr.endswith("load the module of the cluster's MPI, or pip install mpich\n")


@pytest.mark.parametrize(
    ("name", "address", "code", "message"),
    [
        ("dask", "tcp://127.0.0.1:1", 5, "no Dask scheduler answers at tcp://127.0.0.1:1"),
        ("dask", "smoke://signal", 2, "'smoke://signal' is not an address of Dask"),
        ("ray", "127.0.0.1:1", 5, "there is no Ray cluster at '127.0.0.1:1': [Errno 111] Connection refused"),
        ("ray", "smoke signal", 5, "there is no Ray cluster at 'smoke signal'"),
        ("spark", "spark://127.0.0.1:1", 5, "no Spark master answers at spark://127.0.0.1:1"),
        ("spark", "smoke signal", 2, "'smoke signal' is not an address of Spark"),
    ],
)
def test_a_cluster_that_is_not_there_is_told(photos, tmp_path, name, address, code, message):
    pytest.importorskip(PACKAGES[name])
    shorter = "import dlio.executors.dask; dlio.executors.dask.CONNECT_SECONDS = 1"
    done = pack(EngineRunner(name), photos, tmp_path / "out", "--engine-address", address, before=shorter)
    assert done.returncode == code, done.stderr
    assert done.stderr.startswith(f"dlio: {message}")
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out").exists()


def test_a_missing_java_is_told(photos, tmp_path):
    pytest.importorskip("pyspark")
    done = pack(EngineRunner("spark", variables={"JAVA_HOME": "/nowhere"}), photos, tmp_path / "out")
    assert (done.returncode, done.stderr.count("apt-get install openjdk-17-jre-headless")) == (5, 1)


@pytest.mark.parametrize("name", ["dask", "ray", "spark"])
def test_a_cluster_decides_the_number_of_workers(photos, tmp_path, name, monkeypatch, capsys):
    """This is told before the engine's package is imported, which may take seconds."""
    monkeypatch.setitem(sys.modules, PACKAGES[name], None)
    words = ["--engine", name, "--engine-address", "tcp://h:1", "--workers", "2"]
    assert main(["pack", str(photos), str(tmp_path / "out"), *words]) == 2
    said = capsys.readouterr().err
    assert "uses the workers of the cluster at tcp://h:1, given 2: leave --workers out\n" in said


@pytest.mark.parametrize("name", ["processes", "serial"])
def test_an_engine_of_this_machine_takes_no_address(name):
    with (
        pytest.raises(UsageError, match=f"the engine {name} accepts no address"),
        executors.open_engine(name, 1, "tcp://h:1"),
    ):
        pass


class DaskCluster:
    """A scheduler and workers that were started before."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.running: list[subprocess.Popen] = []
        self.address = ""

    def start(self, *command: str) -> subprocess.Popen:
        with (self.folder / "log").open("a") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "dask", *command, "--no-dashboard"], stdout=log, stderr=log, cwd=self.folder
            )
        self.running.append(process)
        return process

    def stop(self) -> None:
        for process in reversed(self.running):
            process.terminate()
            process.wait()


@pytest.fixture
def dask_cluster(tmp_path) -> Iterator[DaskCluster]:
    """A Dask scheduler on 127.0.0.1 without workers."""
    pytest.importorskip("distributed")
    (tmp_path / "dask").mkdir()
    cluster = DaskCluster(tmp_path / "dask")
    scheduler_file = tmp_path / "dask" / "scheduler.json"
    options = ["--host", "127.0.0.1", "--port", "0", "--scheduler-file", str(scheduler_file)]
    try:
        scheduler = cluster.start("scheduler", *options)
        while not scheduler_file.exists() or not scheduler_file.read_text().endswith("}"):
            assert scheduler.poll() is None, (tmp_path / "dask/log").read_text()
            time.sleep(0.02)
        cluster.address = json.loads(scheduler_file.read_text())["address"]
        yield cluster
    finally:
        cluster.stop()


@pytest.mark.jobs
def test_a_running_dask_cluster_is_used_and_left_alone(photos, tmp_path, dask_cluster):
    engine = EngineRunner("dask", dask_cluster.address)
    none = engine.run(engine.pack_command(photos, tmp_path / "out", "--format", "tfrecord"))
    assert none.returncode == 5
    assert f"the Dask cluster at {dask_cluster.address} has no workers: start some" in none.stderr
    worker = dask_cluster.start("worker", dask_cluster.address, "--nthreads", "2", "--host", "127.0.0.1")
    wait = f"from distributed import Client; Client({dask_cluster.address!r}).wait_for_workers(1, timeout=60)"
    subprocess.run([sys.executable, "-c", wait], check=True, stderr=subprocess.DEVNULL)
    for out in ("out", "again"):
        options = ["--format", "tfrecord", "--num-shards", "5"]
        done = engine.run(engine.pack_command(photos, tmp_path / out, *options))
        assert (done.returncode, done.stderr) == (0, "")
    assert content(tmp_path / "out") == content(tmp_path / "again")
    assert [process.poll() for process in dask_cluster.running] == [None, None]
    assert worker.poll() is None


@pytest.mark.jobs
def test_a_dask_scheduler_that_goes_away_ends_the_run(photos, tmp_path, dask_cluster):
    dask_cluster.start("worker", dask_cluster.address, "--nthreads", "1", "--host", "127.0.0.1", "--no-nanny")
    engine = EngineRunner("dask", dask_cluster.address)
    wait = f"from distributed import Client; Client({dask_cluster.address!r}).wait_for_workers(1, timeout=60)"
    subprocess.run([sys.executable, "-c", wait], check=True, stderr=subprocess.DEVNULL)
    script = (
        "import sys, os, signal, dlio; from dlio import executors\n"
        "import dask; dask.config.set({'distributed.comm.timeouts.connect': '1s'})\n"
        "def report(shard): os.kill(int(sys.argv[4]), signal.SIGKILL)\n"
        "with executors.open_engine('dask', None, sys.argv[3]) as pool:\n"
        "    source = dlio.sources.image_folder(sys.argv[1])\n"
        "    dlio.pack(source, sys.argv[2], num_shards=12, engine=pool, report=report)\n"
    )
    scheduler = dask_cluster.running[0].pid
    done = engine.run(engine.command("-c", script, photos, tmp_path / "out", engine.address, scheduler))
    assert done.returncode == 1
    assert "StorageError: a worker died" in done.stderr.splitlines()[-1]
