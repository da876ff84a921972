"""Prologues of schedulers that are not installed, in the environments that their manuals describe."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dlio.dataset.manifest import NAME, Manifest
from dlio.rights.as_owner import switch_to_job_user
from dlio.stage.copies.folder import StagedFolder
from dlio.stage.copies.lease import leases
from tests.helpers.forked import Forked, wait_for
from tests.helpers.live import eventually
from tests.helpers.staging import assert_staged

TOOLS = Path(__file__).parents[2] / "tools" / "prologue"
DLIO = Path(sys.executable).with_name("dlio")
pytestmark = pytest.mark.skipif(os.geteuid() != 0 or not DLIO.exists(), reason="needs root and the command dlio")


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """The folder of a site's prologues, with their settings."""
    folder = tmp_path / "site"
    shutil.copytree(TOOLS, folder)
    (folder / "dlio.conf").write_text(f"DLIO={DLIO}\nDLIO_LOG={folder / 'log'}\n")
    return folder


def request(folder: Path, dataset: Manifest, dest: Path) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "dlio-stage").write_text(f"{dataset.root}\n{dest}\n")


def run_hook(home: Path, *command: str | Path, **environ: str) -> None:
    """Runs a hook where `home` is root's home folder, as the users' list says."""
    users = home.with_name("passwd")
    entries = [line.split(":") for line in Path("/etc/passwd").read_text().splitlines()]
    homes = [":".join([*entry[:5], str(home) if entry[2] == "0" else entry[5], *entry[6:]]) for entry in entries]
    users.write_text("\n".join(homes) + "\n")
    hidden = ["unshare", "-m", "sh", "-c", 'mount --bind "$0" /etc/passwd && exec "$@"', str(users)]
    done = subprocess.run([*hidden, *map(str, command)], env=environ, capture_output=True, check=False, timeout=100)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def wait_for_manifest(dataset: Manifest, dest: Path) -> Manifest:
    root = dest / "dlio" / dataset.content_id
    for _ in range(5000):
        if (root / NAME).exists() and not (root / ".dlio/live").exists():
            break
        time.sleep(0.02)
    return Manifest.load(root)


def test_pbs(dataset: Manifest, site: Path, tmp_path: Path) -> None:
    request(tmp_path / "home", dataset, tmp_path / "local")
    run_hook(tmp_path / "home", site / "pbs-prologue", "12.pbs", "root", "root")
    assert_staged(wait_for_manifest(dataset, tmp_path / "local"), dataset)
    assert [lease.job for lease in leases(StagedFolder(tmp_path / "local", dataset.content_id))] == ["12.pbs"]


def test_flux(dataset: Manifest, site: Path, tmp_path: Path) -> None:
    request(tmp_path / "home", dataset, tmp_path / "local")
    run_hook(tmp_path / "home", site / "flux-prolog", FLUX_JOB_ID="f2Gw", FLUX_JOB_USERID="0")
    assert_staged(Manifest.load(tmp_path / "local" / "dlio" / dataset.content_id), dataset)


def slurm(site: Path, work: Path) -> dict[str, str]:
    return {"SLURM_JOB_ID": "7", "SLURM_JOB_UID": "0", "SLURM_JOB_GID": "0", "SLURM_JOB_WORK_DIR": str(work)}


def test_slurm_prolog_and_epilog(dataset: Manifest, site: Path, tmp_path: Path) -> None:
    request(tmp_path / "work", dataset, tmp_path / "local")
    environ = slurm(site, tmp_path / "work")
    run_hook(tmp_path / "work", site / "slurm-prolog", **environ)
    assert_staged(wait_for_manifest(dataset, tmp_path / "local"), dataset)
    with (site / "dlio.conf").open("a") as settings:
        settings.write(f"DEST={tmp_path / 'local'}\n")
    run_hook(tmp_path / "work", site / "slurm-epilog", **environ)
    assert not list((tmp_path / "local").iterdir())


def test_a_prolog_returns_at_once_and_an_epilog_stops_staging(dataset: Manifest, site: Path, tmp_path: Path) -> None:
    (site / "slow").write_text('#!/bin/bash\n[ "$1" = stage ] || exit 0\necho $$ >"${0%/*}/pid"\nsleep 1000 & wait\n')
    (site / "slow").chmod(0o755)
    (site / "dlio.conf").write_text(f"DLIO={site / 'slow'}\n")
    request(tmp_path / "work", dataset, tmp_path / "local")
    environ = slurm(site, tmp_path / "work")
    run_hook(tmp_path / "work", site / "slurm-prolog", **environ)  # while its stager continues
    while not (site / "pid").exists() or not (site / "pid").read_text():
        time.sleep(0.01)
    stager = Path("/proc") / (site / "pid").read_text().strip()
    assert stager.exists()
    run_hook(tmp_path / "work", site / "slurm-epilog", **environ)
    for _ in range(500):
        if not stager.exists():
            return
        time.sleep(0.01)
    pytest.fail("the stager still runs")


@pytest.mark.parametrize("hook", ["slurm-prolog", "slurm-prolog --background", "pbs-prologue", "flux-prolog"])
def test_a_stager_has_nothing_of_roots_open(dataset: Manifest, site: Path, tmp_path: Path, hook: str) -> None:
    """Except for a pipe to root's log, however many files are open in the hook."""
    (site / "stager").write_text(
        '#!/bin/bash\n[ "$1" = stage ] || exit 0\nstat -L -c "%F %n" /proc/$$/fd/[0-9] /proc/$$/fd/[0-9][0-9] '
        '>"${0%/*}/open.part" 2>&1\necho "logged" >&2\nmv "${0%/*}/open.part" "${0%/*}/open"\n'
    )
    (site / "stager").chmod(0o755)
    (site / "dlio.conf").write_text(f"DLIO={site / 'stager'}\nDLIO_LOG={site / 'log'}\n")
    request(tmp_path / "home", dataset, tmp_path / "local")
    with (tmp_path / "home" / "dlio-stage").open("a") as asked:
        asked.write("replicate\n" if "--background" in hook else "")
    environ = slurm(site, tmp_path / "home") | {"FLUX_JOB_ID": "f", "FLUX_JOB_USERID": "0"}
    words = [str(site / hook.split()[0]), *(["12.pbs", "root", "root"] if hook == "pbs-prologue" else [])]
    run_hook(
        tmp_path / "home",
        "/bin/bash",
        "-c",
        f'exec 7>>{site / "log"} 12<{site / "log"}; exec "$@"',
        "-",
        *words,
        **environ,
    )
    wait_for(site / "open")
    found = dict(
        reversed(line.rsplit(" ", 1)) for line in (site / "open").read_text().splitlines() if "stat:" not in line
    )
    kinds = {int(Path(name).name): kind for name, kind in found.items()}
    assert kinds.pop(2) == "fifo" and kinds.pop(0) == "character special file"
    assert set(kinds) <= {1, 255}, f"255 is its own script: {kinds}"
    eventually(lambda: (site / "log").read_text() == "logged\n")


def _status(descriptor: int) -> os.stat_result | None:
    try:
        return os.fstat(descriptor)
    except OSError:
        return None


def test_root_becomes_the_jobs_user_in_a_prolog_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """That process has no open file of root's, and none of the process that started root's."""
    monkeypatch.setenv("SLURM_JOB_UID", "2001")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("OF_ROOT", "secret")

    (secret := tmp_path / "of root").write_text("kept")
    reader, writer = os.pipe()

    def switch_user() -> tuple[object, ...]:
        switch_to_job_user()
        return os.getresuid(), os.getgroups(), os.environ.get("OF_ROOT"), os.environ.get("SLURM_JOB_ID")

    def in_prolog() -> None:
        os.environ["SLURM_SCRIPT_CONTEXT"] = "prolog_slurmd"
        log = os.open(secret, os.O_RDWR)
        os.dup2(log, 0)
        os.dup2(log, 2)
        os.dup2(writer, 1)
        os.set_inheritable(log, True)
        assert switch_user() == ((2001, 2001, 2001), [], None, "7")
        found = {number: status for number in range(256) if (status := _status(number))}
        assert set(found) == {0, 1, 2}
        assert found[0].st_rdev == Path("/dev/null").stat().st_rdev
        assert stat.S_ISFIFO(found[1].st_mode) and stat.S_ISFIFO(found[2].st_mode)
        os.write(1, b"said\n")

    def in_a_job() -> None:
        assert switch_user()[0] == (0, 0, 0)

    assert Forked(in_prolog).wait() == 0
    assert os.read(reader, 100) == b"said\n"
    assert secret.read_text() == "kept"
    assert Forked(in_a_job).wait() == 0


@pytest.mark.parametrize("hook", ["slurm-prolog", "pbs-prologue", "flux-prolog"])
@pytest.mark.parametrize("kind", ["silent", "held", "endless"])
def test_a_request_that_never_ends_holds_no_hook(site: Path, tmp_path: Path, hook: str, kind: str) -> None:
    for folder in (tmp_path / "work", tmp_path / "home"):
        folder.mkdir(exist_ok=True)
        os.mkfifo(folder / "dlio-stage") if kind != "endless" else (folder / "dlio-stage").symlink_to("/dev/zero")
    opened = [os.open(tmp_path / name / "dlio-stage", os.O_RDWR) for name in ("work", "home") if kind == "held"]
    arguments = ["12.pbs", "root", "root"] if hook == "pbs-prologue" else []
    environ = slurm(site, tmp_path / "work") | {"FLUX_JOB_ID": "f2Gw", "FLUX_JOB_USERID": "0"}
    run_hook(tmp_path / "home", site / hook, *arguments, **environ)
    for descriptor in opened:  # which had a writer that says nothing
        os.close(descriptor)


@pytest.mark.parametrize("hook", ["slurm-prolog", "slurm-epilog", "pbs-prologue", "flux-prolog"])
def test_whatever_is_wrong_a_hook_ends_well(site: Path, tmp_path: Path, hook: str) -> None:
    environ = {**slurm(site, tmp_path), "FLUX_JOB_ID": "f", "FLUX_JOB_USERID": "0"}
    arguments = ("12.pbs", "root", "root") if hook == "pbs-prologue" else ()
    (tmp_path / "home").mkdir()
    run_hook(tmp_path / "home", site / hook, *arguments, **environ)
    (tmp_path / "home" / "dlio-stage").write_text("/no/data set\n/no/dest\n")
    (tmp_path / "dlio-stage").write_text("/no/data set\n/no/dest\n")
    run_hook(tmp_path / "home", site / hook, *arguments, **environ)
    (site / "dlio.conf").write_text("DLIO=/nowhere\n")
    run_hook(tmp_path / "home", site / hook, *arguments, **environ)


def test_taskprolog_exports_the_destination(dataset: Manifest, site: Path, tmp_path: Path) -> None:
    request(tmp_path / "work", dataset, tmp_path / "lo cal")
    work = tmp_path / "work"
    done = subprocess.run([site / "slurm-taskprolog"], cwd=work, capture_output=True, text=True, check=True)
    assert done.stdout == f"export DLIO_STAGED={tmp_path / 'lo cal'}\n"
    done = subprocess.run([site / "slurm-taskprolog"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == ""


def test_lsf_stages_on_every_host(dataset: Manifest, site: Path, tmp_path: Path) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "blaunch").write_text('#!/bin/bash\nshift\nfor host in $1; do echo "$host" >>"$LOG"; "${@:2}"; done\n')
    (tools / "blaunch").chmod(0o755)
    environ = {"PATH": f"{tools}:{DLIO.parent}:{os.environ['PATH']}", "LOG": str(tmp_path / "hosts"), "LSB_JOBID": "9",
               "LSB_MCPU_HOSTS": "hosta 4 hostb 4"}  # fmt: skip
    subprocess.run([site / "lsf-pre-exec", dataset.root, tmp_path / "local"], env=environ, check=True)
    assert (tmp_path / "hosts").read_text().split() == ["hosta", "hostb"]
    assert_staged(Manifest.load(tmp_path / "local" / "dlio" / dataset.content_id), dataset)
    failed = subprocess.run([site / "lsf-pre-exec", tmp_path, tmp_path / "local"], env=environ, check=False)
    assert failed.returncode != 0, "so that LSF puts the job back into the queue"


def test_kubernetes_init_container(dataset: Manifest, tmp_path: Path) -> None:
    yaml = pytest.importorskip("yaml")
    job = yaml.safe_load((TOOLS / "kubernetes.yaml").read_text())
    (container,) = job["spec"]["template"]["spec"]["initContainers"]
    paths = {"dlio": str(DLIO), "/shared/photos-packed": str(dataset.root), "/local": str(tmp_path / "local")}
    command = [paths.get(word, word) for word in container["command"]]
    environ = {item["name"]: item["value"] for item in container["env"]} | {"JOB_COMPLETION_INDEX": "2"}
    subprocess.run(command, env=environ, check=True, capture_output=True)
    assert_staged(Manifest.load(tmp_path / "local" / "dlio" / dataset.content_id), dataset)
