"""Staging in a real SLURM cluster of three nodes with networks and their own SSDs: job script, Prolog, Epilog."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from PIL import Image

import dlio
from dlio.dataset.manifest import Manifest
from tests.helpers.staging import write_dataset

TRAIN = Path(__file__).parents[2] / "tools" / "demo" / "train.py"
TOOLS = Path(__file__).parents[2] / "tools" / "prologue"
SCRIPT = Path(__file__).with_name("virtual_cluster.sh")
NEEDED = ("slurmctld", "slurmd", "srun", "munged", "nsenter", "unshare", "ip", "setpriv")
pytestmark = [
    pytest.mark.jobs,
    pytest.mark.skipif(
        os.geteuid() != 0 or not all(map(shutil.which, NEEDED)), reason="needs root and the packages of SLURM and munge"
    ),
    pytest.mark.xdist_group("slurm"),
]

VERIFY = """
import os, sys, socket
import dlio
from dlio.io.files import check_digest
from dlio.dataset.manifest import Manifest
from dlio.stage.client.resolve import resolve
root = resolve(sys.argv[1])
assert str(root).startswith(os.environ["DLIO_STAGED"]), root
for shard in Manifest.load(root).shards:
    for file in shard.files:
        if (root / file.name).exists():
            check_digest(root / file.name, file.digest)
            print(socket.gethostname(), file.name)
"""


class Cluster:
    """Three nodes and a login node, below a folder that they all see."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.local = folder / "local"

    def on(self, host: str, *command: str | Path) -> str:
        """Runs a command on a host and returns what it printed."""
        environ = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
        environ.pop("DLIO_LAUNCHER", None)
        done = subprocess.run(
            ["bash", SCRIPT, "exec", self.folder, host, *command],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, env=environ, timeout=240, cwd=self.folder,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def batch(self, script: Path, *arguments: str | Path, chdir: Path | None = None) -> str:
        """Runs a batch job over all nodes to its end and returns its output."""
        output = self.folder / f"out-{time.monotonic_ns()}"
        where = ["--chdir", str(chdir)] if chdir else []
        submit = ["sbatch", "-W", "-N3", "--ntasks-per-node=1", "-o", str(output), *where, str(script)]
        try:
            self.on("ctl", *submit, *arguments)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{output.read_text()}") from None
        return output.read_text()

    def on_ssds(self) -> list[list[str]]:
        """Returns what lies on the three nodes' SSDs."""
        return [self.on(f"node{number}", "find", self.local, "-mindepth", "1").split() for number in (1, 2, 3)]

    def wait_until_empty(self) -> None:
        """Waits for the epilogues: sbatch -W returns when the job's script has ended."""
        for _ in range(200):
            if self.on_ssds() == [[], [], []]:
                return
            time.sleep(0.1)
        assert self.on_ssds() == [[], [], []]


@pytest.fixture
def start() -> Iterator[Callable[[], Cluster]]:
    """Starts the cluster; hooks are put into its folder before."""
    folder = Path(tempfile.mkdtemp(prefix="dlio-slurm-", dir="/tmp"))
    folder.chmod(0o755)

    def up() -> Cluster:
        subprocess.run(["bash", SCRIPT, "up", folder, "3", "64"], check=True, stdin=subprocess.DEVNULL, timeout=60)
        return Cluster(folder)

    up.folder = folder  # type: ignore[attr-defined]
    yield up
    subprocess.run(["bash", SCRIPT, "down", folder], check=False, stdin=subprocess.DEVNULL, timeout=60)
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def shared(start: Callable[[], Cluster]) -> Manifest:
    """A data set in the folder that all nodes see."""
    return write_dataset(start.folder / "shared", [3 << 20, 5 << 20, 1, 4 << 20, 2 << 20, 0])  # type: ignore[attr-defined]


def script(cluster: Cluster, name: str, text: str) -> Path:
    path = cluster.folder / name
    path.write_text(text)
    path.chmod(0o755)
    return path


@pytest.mark.parametrize("strategy", ["replicate", "broadcast", "partition"])
def test_a_job_script_stages_trains_and_leaves_nothing(
    start: Callable[[], Cluster], shared: Manifest, strategy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = start()
    monkeypatch.setenv("DLIO_STAGE_OPTIONS", f"--strategy {strategy}")
    monkeypatch.setenv("DLIO_SRUN_OPTIONS", "--mpi=pmi2")
    verify = script(cluster, "verify.py", VERIFY)
    output = cluster.batch(TOOLS / "slurm-job.sh", shared.root, cluster.local, sys.executable, verify, shared.root)
    reports = [json.loads(line) for line in output.splitlines() if line.startswith('{"path')]
    assert sorted(report["node"] for report in reports) == ["node1", "node2", "node3"]
    read = sum(report["source_bytes"] for report in reports)
    assert read == shared.num_bytes * (3 if strategy == "replicate" else 1)
    verified = [line.split() for line in output.splitlines() if line.endswith(".bin")]
    assert len(verified) == len(shared.shards) * (1 if strategy == "partition" else 3)
    assert {host for host, _ in verified} == {"node1", "node2", "node3"}
    cluster.wait_until_empty()


# Static node ranks: the parts lie on the nodes by SLURM's numbers, and torchrun's own rendezvous would deal new ones.
TORCHRUN = """#!/bin/bash
export OMP_NUM_THREADS=1 GLOO_SOCKET_IFNAME=eth0
exec torchrun --nnodes=3 --nproc-per-node=1 --node-rank="$SLURM_NODEID" --master-addr=node1 --master-port=29500 \\
  "$2" "$1"
"""


def test_the_demo_trains_from_the_ssds(
    start: Callable[[], Cluster], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    cluster = start()
    packed = pack_photos(tmp_path / "photos", cluster.folder / "packed")
    monkeypatch.setenv("DLIO_STAGE_OPTIONS", "--strategy partition")
    only_ssds = 'rm -f "$1"/*.tfrecord  # from here on only the copies on the SSDs are left\nexport'
    torchrun = script(cluster, "torchrun", TORCHRUN.replace("export", only_ssds))
    output = cluster.batch(TOOLS / "slurm-job.sh", packed, cluster.local, torchrun, packed, TRAIN)
    check_epochs(output)
    cluster.wait_until_empty()


def check_epochs(output: str) -> None:
    epochs = [line for line in output.splitlines() if line.startswith("epoch ")]
    assert [line.split(",")[0] for line in epochs] == [f"epoch {number}: 192 images on 3 ranks" for number in (0, 1)]


def test_torchrun_trains_while_the_agents_that_the_prolog_started_stage(
    start: Callable[[], Cluster], tmp_path: Path
) -> None:
    """The agents know each other, do not each read the whole source, and end with the job."""
    pytest.importorskip("torch")
    local = start.folder / "local"  # type: ignore[attr-defined]
    hooks(start, DEST=str(local))
    cluster = start()
    packed = pack_photos(tmp_path / "photos", cluster.folder / "packed")
    work = cluster.folder / "work"
    work.mkdir()
    (work / "dlio-stage").write_text(f"{packed}\n{local}\npartition\n")
    torchrun = script(cluster, "torchrun", TORCHRUN)
    status = f"{sys.executable} -m dlio stage {packed} {local} --status --json"
    job = script(cluster, "job", f"#!/bin/bash\nset -e\nsrun {torchrun} {packed} {TRAIN}\nsrun {status}\n")
    output = cluster.batch(job, chdir=work)
    check_epochs(output)
    states = [json.loads(line)["copies"] for line in output.splitlines() if line.startswith('{"copies')]
    assert sorted(copy["node"] for (copy,) in states) == [0, 1, 2]
    num_bytes = Manifest.load(packed).num_bytes  # an agent that a busy machine delays for seconds counts as lost
    assert num_bytes <= sum(copy["source_bytes"] for (copy,) in states) < 3 * num_bytes
    cluster.wait_until_empty()
    assert (start.folder / "hooks" / "log").read_text() == ""  # type: ignore[attr-defined]


def pack_photos(photos: Path, out: Path) -> Path:
    """Packs 192 images of two classes into six shards, and returns where."""
    for number in range(192):
        label = number % 2
        path = photos / f"class-{label}" / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (64, 64), (200 * label, number, 100)).save(path)
    return dlio.pack(dlio.sources.image_folder(photos), out, num_shards=6, engine="serial").root


def hooks(start: Callable[[], Cluster], **settings: str) -> None:
    folder = start.folder / "hooks"  # type: ignore[attr-defined]
    folder.mkdir()
    for name in ("prolog", "epilog", "taskprolog"):
        shutil.copy(TOOLS / f"slurm-{name}", folder / name)
    shutil.copy(TOOLS / "as-user.sh", folder)
    dlio = folder / "dlio"
    note = f'echo "$(hostname) $1" >>{folder}/called; export DLIO_MEET={folder}'
    dlio.write_text(f'#!/bin/bash\n{note}\nexec {sys.executable} -m dlio "$@"\n')
    dlio.chmod(0o755)
    settings = {"DLIO": str(dlio), "DLIO_LOG": str(folder / "log"), **settings}
    (folder / "dlio.conf").write_text("".join(f"{name}={value}\n" for name, value in settings.items()))


def test_prolog_taskprolog_and_epilog(start: Callable[[], Cluster], shared: Manifest) -> None:
    local = start.folder / "local"  # type: ignore[attr-defined]
    hooks(start, DEST=str(local))
    cluster = start()
    work = cluster.folder / "work"
    work.mkdir()
    (work / "dlio-stage").write_text(f"{shared.root}\n{local}\n")
    verify = script(cluster, "verify.py", VERIFY)
    wait = f'{sys.executable} -m dlio stage {shared.root} "$DLIO_STAGED" --strategy replicate --quiet'
    step = script(cluster, "step", f"#!/bin/bash\n{wait} && {sys.executable} {verify} {shared.root}\n")
    job = script(cluster, "job", f"#!/bin/bash\nsrun {step}\n")
    output = cluster.batch(job, chdir=work)
    assert len([line for line in output.splitlines() if line.endswith(".bin")]) == 3 * len(shared.shards)
    cluster.wait_until_empty()
    folder = start.folder / "hooks"  # type: ignore[attr-defined]
    assert (folder / "log").read_text() == ""
    called = sorted((folder / "called").read_text().splitlines())
    assert called == [f"node{number} {verb}" for number in (1, 2, 3) for verb in ("clean", "stage")]
    assert "drain" not in cluster.on("ctl", "sinfo", "-h", "-N", "-o", "%T")


def test_a_prolog_that_cannot_stage_drains_no_node(start: Callable[[], Cluster], shared: Manifest) -> None:
    hooks(start, DLIO="/nowhere/dlio")
    cluster = start()
    work = cluster.folder / "work"
    work.mkdir()
    (work / "dlio-stage").write_text("/no/data\n/no/dest\n")
    job = script(cluster, "job", "#!/bin/bash\nsrun hostname\n")
    assert sorted(cluster.batch(job, chdir=work).split()) == ["node1", "node2", "node3"]
    assert set(cluster.on("ctl", "sinfo", "-h", "-N", "-o", "%T").split()) <= {"idle", "completing"}
