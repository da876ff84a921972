"""Leases: a job has what it staged until it ends."""

from __future__ import annotations

import errno
import json
import os
import stat
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

import dlio
from dlio.cluster.launchers import job_name
from dlio.dataset.manifest import Manifest
from dlio.io.open_folder import OpenFolder
from dlio.stage.copies import lease as lease_module
from dlio.stage.copies.base_folder import open_up
from dlio.stage.copies.folder import StagedFolder
from dlio.stage.copies.lease import leases, take
from dlio.stage.copies.node_cache import copies, is_in_use
from dlio.stage.upkeep.clean import clean
from tests.helpers.forked import Forked
from tests.helpers.staging import assert_staged, folder_of
from tests.helpers.users import ALICE, COPY, as_user, open_to_all

pytestmark = pytest.mark.usefixtures("job_7")


def lease_folder(staged: Manifest) -> Path:
    return staged.root.parent / ".leases"


def test_a_job_leases_what_it_stages_until_its_epilogue(dataset: Manifest, tmp_path: Path) -> None:
    staged = dlio.stage(dataset, tmp_path / "local")
    assert [lease.job for lease in leases(folder_of(staged))] == ["7"]
    assert clean(tmp_path / "local", job="8") == []
    assert_staged(staged, dataset)
    assert clean(tmp_path / "local", job="7") == [staged.root]
    assert not list((tmp_path / "local").iterdir())


@pytest.mark.parametrize("begun", [None, ".dlio/aside/.copy.json.tmp"], ids=["absent", "unmarked"])
def test_the_lease_of_an_interrupted_stage_ends_without_its_copy(tmp_path: Path, begun: str | None) -> None:
    folder = StagedFolder(tmp_path / "local", COPY)
    open_up(folder.dest)
    take(folder)
    if begun:
        (folder.path / begun).parent.mkdir(parents=True)
        (folder.path / begun).touch()
    assert leases(folder)
    assert clean(folder.dest, job="8") == [] and leases(folder)
    assert clean(folder.dest, job="7") == []
    assert not list(folder.dest.iterdir())


def test_an_epilogue_may_keep_the_copies_for_the_next_job(
    dataset: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    staged = dlio.stage(dataset, tmp_path / "local")
    assert clean(tmp_path / "local", keep=True) == []
    assert not is_in_use(folder_of(staged))
    assert_staged(staged, dataset)


def test_two_jobs_share_a_copy(dataset: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    staged = dlio.stage(dataset, tmp_path / "local")
    monkeypatch.setenv("SLURM_JOB_ID", "8")
    dlio.stage(dataset, tmp_path / "local")
    assert clean(tmp_path / "local", job="7") == []
    assert clean(tmp_path / "local") == [staged.root]


def test_a_requeued_job_finds_its_lease(dataset: Manifest, tmp_path: Path) -> None:
    staged = dlio.stage(dataset, tmp_path / "local")
    dlio.stage(dataset, tmp_path / "local")
    assert len(list(leases(folder_of(staged)))) == 1


def test_a_second_stage_renews_the_lease(dataset: Manifest, tmp_path: Path) -> None:
    folder = folder_of(dlio.stage(dataset, tmp_path / "local"))
    (before,) = leases(folder)
    os.utime(tmp_path / "local/dlio/.leases" / before.name, (1, 1))
    dlio.stage(dataset, tmp_path / "local")
    (after,) = leases(folder)
    assert after.name == before.name
    assert (tmp_path / "local/dlio/.leases" / after.name).stat().st_mtime > 1


def test_outside_a_scheduler_the_lease_ends_with_the_session(
    dataset: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SLURM_JOB_ID")

    def session() -> None:
        os.setsid()
        staged = dlio.stage(dataset, tmp_path / "local")
        assert is_in_use(folder_of(staged))

    assert Forked(session).wait() == 0
    assert len(clean(tmp_path / "local")) == 1


def test_many_ended_sessions_do_not_hide_a_jobs_lease(
    dataset: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    staged = dlio.stage(dataset, tmp_path / "local")
    monkeypatch.delenv("SLURM_JOB_ID")

    def session() -> None:
        os.setsid()
        dlio.stage(dataset, tmp_path / "local")

    monkeypatch.setattr(lease_module, "_MAX_READ", 5)
    for _ in range(12):
        assert Forked(session).wait() == 0
    assert clean(tmp_path / "local", job="8") == []
    assert_staged(staged, dataset)


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
def test_after_su_the_lease_ends_with_the_users_first_process(
    dataset: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SLURM_JOB_ID")
    dest = open_to_all(tmp_path)

    def shell() -> None:
        staged = dlio.stage(dataset, dest)
        (lease,) = leases(folder_of(staged))
        assert lease.holder.pid == os.getpid()
        child = Forked(lambda: take(folder_of(staged)))
        assert child.wait() == 0
        assert leases(folder_of(staged)) == [replace(lease, renewed=leases(folder_of(staged))[0].renewed)]

    assert as_user(ALICE, shell) == 0
    assert [path.name for path in clean(dest)] == [dataset.content_id]


def test_a_lease_from_before_the_last_boot_is_over(dataset: Manifest, tmp_path: Path) -> None:
    staged = dlio.stage(dataset, tmp_path / "local")
    (lease,) = leases(folder_of(staged))
    path = lease_folder(staged) / lease.name
    record = json.loads(path.read_text())
    record["holder"]["node"] = lease.holder.node.replace("/", "/not")
    path.write_text(json.dumps(record))
    assert not is_in_use(folder_of(staged))


def test_a_lease_of_an_unknown_holder_ends_after_a_week(dataset: Manifest, tmp_path: Path) -> None:
    (lease,) = leases(folder_of(dlio.stage(dataset, tmp_path / "local")))
    assert not replace(lease, renewed=time.time() - 6 * 86400).is_over()
    assert replace(lease, renewed=time.time() - 8 * 86400).is_over()


def test_a_link_instead_of_the_leases_folder_is_not_followed(dataset: Manifest, tmp_path: Path) -> None:
    private = tmp_path / "home"
    private.mkdir(mode=0o700)
    (tmp_path / "local" / "dlio").mkdir(parents=True)
    (tmp_path / "local").chmod(0o1777)
    (tmp_path / "local" / "dlio" / ".leases").symlink_to(private)
    staged = dlio.stage(dataset, tmp_path / "local")
    assert staged.root.parent.parent.name == f"dlio-u{os.geteuid()}"
    assert stat.S_IMODE(private.stat().st_mode) == 0o700
    assert not list(private.iterdir())


def test_a_lease_that_cannot_be_taken_leaves_nothing_behind(
    dataset: Manifest, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    staged = dlio.stage(dataset, tmp_path / "local")
    clean(tmp_path / "local", keep=True)

    def refuse(*_: object) -> None:
        raise OSError(errno.EDQUOT, "no more files")

    monkeypatch.setattr(OpenFolder, "rename", refuse)
    take(folder_of(staged))
    assert "without a lease" in caplog.text
    assert not list(lease_folder(staged).iterdir())


@pytest.mark.parametrize("name", ["SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "FLUX_JOB_ID"])
def test_job_names_come_from_the_schedulers_variables(name: str) -> None:
    assert job_name({name: "12/3.pbs"}) == "12_3.pbs"
    assert job_name({}) == ""


def test_session_leases_of_a_dead_shell_do_not_block(dataset: Manifest, tmp_path: Path) -> None:
    code = "import dlio, sys; dlio.stage(sys.argv[1], sys.argv[2])"
    environ = {name: value for name, value in os.environ.items() if name != "SLURM_JOB_ID"}
    command = [sys.executable, "-c", code, str(dataset.root), str(tmp_path / "local")]
    subprocess.run(command, check=True, start_new_session=True, env=environ)
    (copy,) = copies(tmp_path / "local")
    assert not is_in_use(copy)
