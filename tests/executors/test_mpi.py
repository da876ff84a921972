"""MPI in particular: ranks that are killed, jobs that continue with fewer, which rank prints, and srun."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

import dlio
from dlio.cluster.topology import Topology
from dlio.dataset.manifest import NAME
from dlio.sources import image_folder
from dlio.testing.engine_runner import SCENARIOS, SECONDS, EngineRunner, finished, identities, wait_for_shards
from tests.helpers.images import make_image_folder
from tests.helpers.mpi import MPI, MPIEXEC
from tests.helpers.packing import BYTE_IDENTICAL, content

pytest.importorskip("mpi4py")
pytestmark = [pytest.mark.jobs, pytest.mark.skipif(MPIEXEC is None, reason="needs mpiexec")]


@pytest.fixture
def mpi() -> EngineRunner:
    """The engine mpi."""
    return MPI.alone()


def rank_of(process: int) -> int:
    """Returns the rank of a process that mpiexec has started."""
    variables = Path(f"/proc/{process}/environ").read_bytes().decode().split("\0")
    return Topology.from_env(dict(variable.split("=", 1) for variable in variables if variable)).rank


@pytest.mark.parametrize(("name", "killed"), list(zip(BYTE_IDENTICAL, ["rank 0", "a worker", "all"], strict=False)))
def test_started_on_four_ranks_killed_finished_on_two(mpi, tmp_path, name, killed):
    make_image_folder(tmp_path / "in", {"a": 400, "b": 400})
    out, shards = tmp_path / "out", 200
    options = ["--format", name, "--num-shards", str(shards)]
    command = mpi.pack_command(tmp_path / "in", out, *options, workers=3)
    with subprocess.Popen(command, env=mpi.environ(), stderr=subprocess.DEVNULL) as run:
        wait_for_shards(out, shards // 10, run)
        if killed == "all":
            run.kill()
        else:
            ranks = [process for process, line in mpi.processes().items() if line.startswith(sys.executable)]
            by_rank = dict(zip(map(rank_of, ranks), ranks, strict=True))
            assert sorted(by_rank) == [0, 1, 2, 3]
            os.kill(by_rank[0 if killed == "rank 0" else 2], signal.SIGKILL)
    assert run.returncode != 0
    mpi.assert_nothing_runs()
    assert not (out / NAME).exists()
    lines = finished(out)
    assert shards // 10 <= len(lines) < shards
    done = [file["name"] for line in lines if line.endswith("}") for file in json.loads(line)["files"]]
    kept = {file: identity for file, identity in identities(out).items() if file in done}
    assert len(kept) == len(done)
    again = mpi.run(mpi.pack_command(tmp_path / "in", out, *options, workers=1))
    assert (again.returncode, again.stderr) == (0, "")
    assert kept.items() <= identities(out).items()
    dlio.pack(image_folder(tmp_path / "in"), tmp_path / "whole", format=name, num_shards=shards, engine="serial")
    assert content(out) == content(tmp_path / "whole")


class TestWhoSpeaks:
    """Errors and reports are told once, by rank 0, and all ranks end with the same code."""

    @pytest.mark.parametrize(
        ("arguments", "code", "message"),
        [
            ("{tmp}/nowhere {tmp}/out", 2, "nowhere does not exist"),
            ("{tmp}/bad {tmp}/out", 3, "'cat/x.png': it is not an image"),
            ("{tmp}/photos {tmp}/out --workers 3", 2, "leave --workers out"),
            ("{tmp}/photos {tmp}/out --engine-address tcp://h:1", 2, "leave --engine-address out"),
            ("{tmp}/photos {tmp}/bad", 2, "which dlio has not packed"),
        ],
    )
    def test_an_error(self, mpi, photos, tmp_path, arguments, code, message):
        shutil.copytree(photos, tmp_path / "bad")
        (tmp_path / "bad/cat/x.png").write_text("no image")
        options = arguments.format(tmp=tmp_path).split()
        done = mpi.run(
            mpi.command("-m", "dlio", "pack", *options, "--format", "tfrecord", "--engine", "mpi", workers=1)
        )
        assert done.returncode == code
        assert message in done.stderr
        assert done.stderr.count("dlio: ") == 1
        assert done.stdout == ""

    def test_a_report(self, mpi, photos, tmp_path):
        (photos / "cat/x.png").write_text("no image")
        options = ["--format", "tfrecord", "--engine", "mpi", "--on-error", "skip", "--json"]
        done = mpi.run(mpi.command("-m", "dlio", "pack", photos, tmp_path / "out", *options, workers=1))
        assert done.returncode == 1
        assert json.loads(done.stdout)["samples"] == 36
        assert done.stderr.count("dlio: skipped 'cat/x.png'") == 1

    def test_a_dry_run(self, mpi, photos, tmp_path):
        options = ["--format", "tfrecord", "--engine", "mpi", "--dry-run", "--json"]
        done = mpi.run(mpi.command("-m", "dlio", "pack", photos, tmp_path / "out", *options, workers=1))
        assert done.returncode == 0
        assert json.loads(done.stdout)["samples"] == 36
        assert not (tmp_path / "out").exists()

    @pytest.mark.parametrize("command", [[], [str(MPIEXEC), "-n", "1"]], ids=["alone", "one rank"])
    def test_one_rank_is_told_what_to_do(self, mpi, photos, tmp_path, command):
        options = ["--format", "tfrecord", "--engine", "mpi"]
        done = mpi.run([*command, sys.executable, "-m", "dlio", "pack", str(photos), str(tmp_path / "out"), *options])
        assert done.returncode == 5
        assert "start the command with mpiexec -n 4 ..., or srun --mpi=pmi2 -n 4" in done.stderr


def test_every_rank_of_a_script_gets_manifest_or_error(mpi, photos, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import sys, dlio\n"
        "from pathlib import Path\n"
        "from mpi4py import MPI\n"
        "source = dlio.sources.image_folder(sys.argv[1])\n"
        "def report(shard):\n"
        "    if sys.argv[3].endswith('fail'): raise LookupError(lambda: 'no pickle can hold me')\n"
        "try:\n"
        "    found = dlio.pack(source, sys.argv[2], engine='mpi', num_shards=6, report=report).num_samples\n"
        "except Exception as error:\n"
        "    found = type(error).__name__\n"
        "Path(sys.argv[3] + str(MPI.COMM_WORLD.rank)).write_text(str(found))\n"
    )
    for how, expected in [("fail", ["LookupError", "DlioError", "DlioError"]), ("work", ["36", "36", "36"])]:
        done = mpi.run(mpi.command(script, photos, tmp_path / "out", tmp_path / how))
        assert done.returncode == 0, done.stderr
        assert [(tmp_path / f"{how}{rank}").read_text() for rank in range(3)] == expected


CLUSTER = Path(__file__).parents[1] / "stage" / "virtual_cluster.sh"
NEEDED = ("slurmctld", "slurmd", "srun", "munged", "nsenter", "unshare", "ip")


@pytest.fixture
def on_controller():
    """Runs commands on the controller of a SLURM cluster of two nodes, each with its own network."""
    if os.geteuid() != 0 or not CLUSTER.exists() or not all(map(shutil.which, NEEDED)):
        pytest.skip("needs root and the packages of SLURM and munge")
    folder = Path(tempfile.mkdtemp(prefix="dlio-slurm-"))
    folder.chmod(0o755)

    def cluster(*command: object, **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", str(CLUSTER), *map(str, command)],
            stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, timeout=SECONDS,
            env={**os.environ, **variables}, cwd=folder,
        )  # fmt: skip

    def run(*command: object, **variables: str) -> tuple[int, str]:
        output.seek(0)
        output.truncate()
        code = cluster("exec", folder, "ctl", *command, **variables).returncode
        output.seek(0)
        return code, output.read()

    with tempfile.TemporaryFile("w+") as output:  # a pipe would stay open with the cluster's daemons
        try:
            assert cluster("up", folder, 2, 64).returncode == 0
            yield run
        finally:
            cluster("down", folder)
            shutil.rmtree(folder, ignore_errors=True)


class TestSrun:
    def test_two_nodes_write_the_same_shards(self, on_controller, photos, tmp_path):
        options = ["--format", "tfrecord", "--num-shards", "7", "--engine", "mpi", "--quiet"]
        command = [sys.executable, "-m", "dlio", "pack", photos, tmp_path / "out", *options]
        assert on_controller("srun", "--mpi=pmi2", "-N2", "-n4", *command) == (0, "")
        dlio.pack(image_folder(photos), tmp_path / "whole", num_shards=7, engine="serial")
        assert content(tmp_path / "out") == content(tmp_path / "whole")

    def test_a_killed_rank_is_missed_and_the_job_ends(self, on_controller, photos, tmp_path):
        """Srun itself would let the others wait forever; MPICH's rank 0 may crash when its peer's socket closes."""
        arguments = ["packs", "mpi", "", "", str(tmp_path)]
        start = (
            "import runpy, sys; from dlio.cluster import liveness; "
            "liveness.BEAT_SECONDS, liveness.LOST_WORKER_SECONDS = 0.05, 15; "
            f"sys.argv[1:] = {arguments}; runpy.run_path({str(SCENARIOS)!r}, run_name='__main__')"
        )
        code, text = on_controller("srun", "--mpi=pmi2", "-N2", "-n4", sys.executable, "-c", start)
        assert code != 0
        assert "a rank of the MPI job has died" in text
        assert not (tmp_path / "out" / NAME).exists()
        code, text = on_controller("srun", "--mpi=pmi2", "-N2", "-n2", sys.executable, SCENARIOS, *arguments)
        assert code == 0, text
        dlio.pack(image_folder(photos), tmp_path / "whole", num_shards=12, engine="serial")
        assert content(tmp_path / "out") == content(tmp_path / "whole")
