"""The node cache: what is leased stays, what is not may go, oldest first, and a data set is found where it lies."""

from __future__ import annotations

import json
import logging
import os
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import dlio
from dlio.claim import Claim, claimed, is_in_progress
from dlio.errors import StorageError
from dlio.manifest import Manifest
from dlio.owner import Owner
from dlio.stage.cache import clean, copies, is_in_use, resolve
from dlio.stage.decide import preview
from dlio.stage.fetch import residue_removed
from dlio.stage.folder import StagedFolder, open_up
from dlio.stage.lease import Lease, job_name, leases, take

from .conftest import Forked, MiB, assert_staged, write_dataset


@pytest.fixture(autouse=True)
def _job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "7")


def folder_of(staged: Manifest) -> StagedFolder:
    return StagedFolder(staged.root.parent.parent, staged.root.name)


def three(tmp_path: Path, size: int = 10 * MiB) -> list[Manifest]:
    return [write_dataset(tmp_path / f"source{seed}", [size], seed=seed) for seed in range(3)]


def test_a_job_leases_what_it_stages_until_its_epilogue(dataset: Manifest, tmp_path: Path) -> None:
    staged = dlio.stage(dataset, tmp_path / "local")
    assert [lease.job for _, lease in leases(folder_of(staged))] == ["7"]
    assert clean(tmp_path / "local", job="8") == []
    assert_staged(staged, dataset)
    assert clean(tmp_path / "local", job="7") == [staged.root]
    assert not list((tmp_path / "local").iterdir())


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


def test_a_lease_from_before_the_last_boot_is_over(dataset: Manifest, tmp_path: Path) -> None:
    staged = dlio.stage(dataset, tmp_path / "local")
    ((path, lease),) = leases(folder_of(staged))
    record = json.loads(path.read_text())
    record["holder"]["node"] = lease.holder.node.replace("/", "/not")
    path.write_text(json.dumps(record))
    assert not is_in_use(folder_of(staged))


def test_a_lease_that_nobody_can_look_up_is_over_after_a_week(dataset: Manifest, tmp_path: Path) -> None:
    ((_, lease),) = leases(folder_of(dlio.stage(dataset, tmp_path / "local")))
    assert not Lease("7", lease.holder, time.time() - 6 * 86400).is_over()
    assert Lease("7", lease.holder, time.time() - 8 * 86400).is_over()


def test_the_least_recently_used_goes_first(
    tmp_path: Path, small_disk: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, third = three(tmp_path)
    disk = small_disk("size=25m")
    for source in (first, second):
        dlio.stage(source, disk)
        time.sleep(0.01)
    dlio.stage(first, disk)  # used again, and so the younger of the two
    clean(disk, keep=True)
    assert_staged(dlio.stage(third, disk), third)
    assert {copy.copy for copy in copies(disk)} == {first.content_id, third.content_id}


def test_what_is_in_use_is_not_evicted_and_named(tmp_path: Path, small_disk: Callable[[str], Path]) -> None:
    first, second, third = three(tmp_path)
    disk = small_disk("size=25m")
    for source in (first, second):
        dlio.stage(source, disk)
    with pytest.raises(StorageError, match=f"{first.content_id} is in use") as caught:
        dlio.stage(third, disk)
    assert "are needed" in str(caught.value)
    assert_staged(dlio.stage(first, disk), first)


def test_only_what_bears_our_marker_is_ever_removed(dataset: Manifest, tmp_path: Path) -> None:
    theirs = tmp_path / "local" / "dlio" / "only-copy"
    theirs.mkdir(parents=True)
    (theirs / "thesis.tex").write_text("years of work")
    unmarked = dlio.stage(dataset, tmp_path / "local")
    (unmarked.root / ".dlio" / "copy.json").unlink()
    clean(tmp_path / "local")
    assert (theirs / "thesis.tex").exists()
    assert unmarked.root.exists()
    with pytest.raises(StorageError, match="bears no dlio marker"):
        folder_of(unmarked).remove()


def test_a_removal_that_was_cut_short_is_finished_or_taken_back(dataset: Manifest, tmp_path: Path) -> None:
    """Another process's `clean` comes while the fate of a copy is open, or finds what a killed one left."""
    staged = dlio.stage(dataset, tmp_path / "local")
    cache = staged.root.parent
    staged.root.rename(cache / f".leaving-0123456789abcdef-{staged.root.name}")
    assert clean(tmp_path / "local", job="none") == []
    assert_staged(staged, dataset)
    staged.root.rename(cache / f".removed-0123456789abcdef-{staged.root.name}")
    (cache / ".removed-by-hand").mkdir()
    (cache / ".removed-by-hand" / "thesis.tex").touch()
    assert clean(tmp_path / "local", job="none") == []
    assert [path.name for path in cache.glob(".removed-*")] == [".removed-by-hand"]
    assert (cache / ".removed-by-hand" / "thesis.tex").exists()


def test_a_job_that_stages_anew_during_a_removal_keeps_its_claim(
    dataset: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = folder_of(dlio.stage(dataset, tmp_path / "local"))
    remove = StagedFolder.remove

    def staged_anew(removed: StagedFolder) -> None:
        with claimed(folder.claims, lambda: False):
            remove(removed)
            assert is_in_progress(folder.claims)

    monkeypatch.setattr(StagedFolder, "remove", staged_anew)
    assert clean(tmp_path / "local") == [folder.path]


def test_a_link_in_place_of_a_folder_of_leases_opens_no_other_folder(dataset: Manifest, tmp_path: Path) -> None:
    private = tmp_path / "home"
    private.mkdir(mode=0o700)
    (tmp_path / "local" / "dlio" / ".leases").mkdir(parents=True)
    (tmp_path / "local").chmod(0o1777)
    (tmp_path / "local" / "dlio" / ".leases" / dataset.content_id).symlink_to(private)
    dlio.stage(dataset, tmp_path / "local")
    assert stat.S_IMODE(private.stat().st_mode) == 0o700


def test_an_owner_that_woke_up_spares_the_files_of_its_successor(dataset: Manifest, tmp_path: Path) -> None:
    folder = StagedFolder(tmp_path / "local", dataset.content_id)
    sleeper, successor = (Claim(number, Owner.current(), f"token{number}") for number in (1, 2))
    for claim in (sleeper, successor):
        folder.aside(claim).mkdir(parents=True)
    with pytest.raises(StorageError), residue_removed(folder, sleeper):
        raise StorageError("no such folder any more")
    assert list(folder.unfinished.iterdir()) == [folder.aside(successor)]


def test_a_link_in_a_copy_is_removed_and_not_followed(dataset: Manifest, tmp_path: Path) -> None:
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "data").touch()
    staged = dlio.stage(dataset, tmp_path / "local")
    (staged.root / "link").symlink_to(tmp_path / "precious")
    assert clean(tmp_path / "local") == [staged.root]
    assert (tmp_path / "precious" / "data").exists()


def test_a_copy_that_is_being_filled_is_left_alone(dataset: Manifest, tmp_path: Path) -> None:
    ready = tmp_path / "ready"

    def hang(_: int) -> None:
        ready.touch()
        time.sleep(1000)

    child = Forked(lambda: dlio.stage(dataset, tmp_path / "local", report=hang))
    while not ready.exists():
        time.sleep(0.005)
    assert clean(tmp_path / "local", job="7") == []
    child.kill()
    assert len(clean(tmp_path / "local", job="7")) == 1
    assert not list((tmp_path / "local").iterdir())


def open_to_all(tmp_path: Path) -> None:
    """Makes the folder `tmp` as /tmp is, and lets every user reach it."""
    for folder in (tmp_path, *tmp_path.parents):
        if not folder.stat().st_mode & 0o001:
            folder.chmod(folder.stat().st_mode | 0o055)
    (tmp_path / "tmp").mkdir()
    (tmp_path / "tmp").chmod(0o1777)


def as_user(uid: int, function: Callable[[], object]) -> int:
    """Returns the exit code of a process of the user `uid` that calls the function."""

    def child() -> None:
        os.setgid(uid)
        os.setuid(uid)
        function()

    return Forked(child).wait()


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes other users")
@pytest.mark.parametrize("the_folder_is", ["root's", "another user's"])
def test_what_another_user_made_is_not_relied_on(dataset: Manifest, tmp_path: Path, the_folder_is: str) -> None:
    open_to_all(tmp_path)
    dest = tmp_path / "tmp"

    def hostile() -> None:
        forged = dlio.stage(dataset, dest).root
        for shard in dataset.shards:
            (forged / shard.files[0].name).write_bytes(bytes(shard.num_bytes))

    def careful() -> None:
        staged = dlio.stage(dataset, dest)
        assert staged.root == dest / "dlio-u2002" / "dlio" / dataset.content_id
        assert_staged(staged, dataset)
        assert dlio.stage(dataset, dest).root == staged.root
        assert preview(dataset, dest, strategy="auto").path == str(staged.root)
        for name in ("LOCAL_SCRATCH", "DLIO_STAGED"):
            os.environ[name] = str(dest)
            assert resolve(dataset.root) == staged.root

    if the_folder_is == "root's":
        open_up(dest)
    assert as_user(2001, hostile) == 0
    assert as_user(2002, careful) == 0
    assert dlio.stage(dataset, dest).root.parents[1] == dest / "dlio-u0"
    clean(dest)
    assert not list(dest.iterdir())


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes other users")
def test_a_dead_copier_of_another_user_blocks_nobody(dataset: Manifest, tmp_path: Path) -> None:
    open_to_all(tmp_path)

    def die(_: int) -> None:
        os._exit(9)

    def careful() -> None:
        assert_staged(dlio.stage(dataset, tmp_path / "tmp"), dataset)

    assert as_user(2001, lambda: dlio.stage(dataset, tmp_path / "tmp", report=die)) == 9
    assert as_user(2002, careful) == 0
    assert as_user(2001, careful) == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes other users")
def test_a_half_copy_of_root_blocks_nobody_and_its_whole_copy_serves_all(dataset: Manifest, tmp_path: Path) -> None:
    open_to_all(tmp_path)

    def die(_: int) -> None:
        os._exit(9)

    assert Forked(lambda: dlio.stage(dataset, tmp_path / "tmp", report=die)).wait() == 9
    assert as_user(2001, lambda: assert_staged(dlio.stage(dataset, tmp_path / "tmp"), dataset)) == 0
    whole = dlio.stage(dataset, tmp_path / "tmp").root

    def other_user() -> None:
        assert dlio.stage(dataset, tmp_path / "tmp").root == whole

    assert as_user(2002, other_user) == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes other users")
def test_both_names_taken_by_another_user(dataset: Manifest, tmp_path: Path) -> None:
    open_to_all(tmp_path)

    def squat() -> None:
        dlio.stage(dataset, tmp_path / "tmp")
        (tmp_path / "tmp" / "dlio-u2002").mkdir()

    def careful() -> None:
        with pytest.raises(StorageError, match="dlio-u2002 is another user's"):
            dlio.stage(dataset, tmp_path / "tmp")

    assert as_user(2001, squat) == 0
    assert as_user(2002, careful) == 0


def test_a_lease_that_cannot_be_taken_leaves_nothing_behind(
    dataset: Manifest, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    staged = dlio.stage(dataset, tmp_path / "local")
    folder = folder_of(staged)
    (folder.leases / "7").unlink()
    (folder.leases / "7").mkdir()
    take(folder)
    assert "without a lease" in caplog.text
    assert [path.name for path in folder.leases.iterdir()] == ["7"]


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
def test_a_lease_that_cannot_be_ended_is_a_storage_error(dataset: Manifest, tmp_path: Path) -> None:
    open_to_all(tmp_path)
    dlio.stage(dataset, tmp_path / "tmp")

    def other_user() -> None:
        with pytest.raises(StorageError, match=r"cannot end the lease .*/7: Operation not permitted"):
            clean(tmp_path / "tmp", job="7")

    assert as_user(2001, other_user) == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
def test_roots_copy_is_used_and_not_removed(
    dataset: Manifest, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    open_to_all(tmp_path)
    staged = dlio.stage(dataset, tmp_path / "tmp")

    def other_user() -> None:
        os.setuid(65534)
        os.environ["SLURM_JOB_ID"] = "9"
        assert dlio.stage(dataset, tmp_path / "tmp").root == staged.root
        assert clean(tmp_path / "tmp") == []
        assert dlio.stage(dataset, tmp_path / "tmp").root == staged.root

    assert Forked(other_user).wait() == 0
    assert sorted(lease.job for _, lease in leases(folder_of(staged))) == ["7", "9"]
    (tmp_path / "tmp" / "dlio" / ".leases" / dataset.content_id).chmod(0o755)

    def without_lease() -> None:
        os.setuid(65534)
        logging.getLogger("dlio").addHandler(logging.FileHandler("/dev/null"))
        assert dlio.stage(dataset, tmp_path / "tmp").root == staged.root

    assert Forked(without_lease).wait() == 0


def test_removal_gives_back_a_copy_that_is_leased_in_the_last_moment(
    dataset: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    staged = dlio.stage(dataset, tmp_path / "local")
    folder = folder_of(staged)
    clean(tmp_path / "local", keep=True)
    rename = Path.rename

    def leased_meanwhile(path: Path, target: Path) -> Path:
        if path == folder.path:
            take(folder)
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", leased_meanwhile)
    assert clean(tmp_path / "local", job="none") == []
    assert_staged(staged, dataset)


def test_resolve_finds_the_staged_copy_and_leases_it(
    dataset: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("LOCAL_SCRATCH", "TMPDIR"):
        monkeypatch.delenv(name, raising=False)
    assert resolve(dataset.root) == dataset.root
    staged = dlio.stage(dataset, tmp_path / "local")
    clean(tmp_path / "local", keep=True)
    assert resolve(dataset.root) == dataset.root
    monkeypatch.setenv("LOCAL_SCRATCH", str(tmp_path / "local"))
    assert resolve(dataset.root) == staged.root
    assert is_in_use(folder_of(staged))
    monkeypatch.setenv("LOCAL_SCRATCH", "/nowhere")
    monkeypatch.setenv("DLIO_STAGED", f"/nowhere:{tmp_path / 'local'}")
    assert resolve(dataset.root) == staged.root


@pytest.mark.skipif(os.geteuid() != 0, reason="makes another user's files")
def test_resolve_does_not_trust_anybodys_copy(
    dataset: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    staged = dlio.stage(dataset, tmp_path / "local")
    os.chown(staged.root, 65534, 65534)
    monkeypatch.setenv("LOCAL_SCRATCH", str(tmp_path / "local"))
    assert resolve(dataset.root) == dataset.root
    monkeypatch.setenv("DLIO_STAGED", str(tmp_path / "local"))
    assert resolve(dataset.root) == staged.root


@pytest.mark.parametrize("name", ["SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "FLUX_JOB_ID"])
def test_job_names(name: str) -> None:
    assert job_name({name: "12/3.pbs"}) == "12_3.pbs"
    assert job_name({}) == ""


def test_session_leases_of_a_dead_shell_do_not_block(dataset: Manifest, tmp_path: Path) -> None:
    code = "import dlio, sys; dlio.stage(sys.argv[1], sys.argv[2])"
    environ = {name: value for name, value in os.environ.items() if name != "SLURM_JOB_ID"}
    command = [sys.executable, "-c", code, str(dataset.root), str(tmp_path / "local")]
    subprocess.run(command, check=True, start_new_session=True, env=environ)
    (copy,) = copies(tmp_path / "local")
    assert not is_in_use(copy)
