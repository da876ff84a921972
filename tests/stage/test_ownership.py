"""Copies of other users: root's are used, nobody else's."""

from __future__ import annotations

import logging
import os
import shutil
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

import dlio
from dlio.dataset.manifest import Manifest
from dlio.errors import StorageError
from dlio.stage.client.resolve import resolve
from dlio.stage.copies.base_folder import open_up
from dlio.stage.copies.lease import leases
from dlio.stage.run import preview
from dlio.stage.upkeep.clean import clean
from tests.helpers.forked import Forked
from tests.helpers.staging import assert_staged, folder_of
from tests.helpers.users import as_user, open_to_all

pytestmark = [
    pytest.mark.usefixtures("job_7"),
    pytest.mark.skipif(os.geteuid() != 0, reason="becomes other users"),
]


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


def test_a_dead_copier_of_another_user_blocks_nobody(dataset: Manifest, tmp_path: Path) -> None:
    open_to_all(tmp_path)

    def die(_: int) -> None:
        os._exit(9)

    def careful() -> None:
        assert_staged(dlio.stage(dataset, tmp_path / "tmp"), dataset)

    assert as_user(2001, lambda: dlio.stage(dataset, tmp_path / "tmp", report=die)) == 9
    assert as_user(2002, careful) == 0
    assert as_user(2001, careful) == 0


@pytest.mark.parametrize("killed", ["entering", "opening", "claiming"])
def test_folders_that_a_killed_root_has_not_opened_block_nobody(dataset: Manifest, tmp_path: Path, killed: str) -> None:
    open_to_all(tmp_path)
    dest = tmp_path / "tmp"
    if killed == "claiming":
        open_up(dest)
        (dest / "dlio" / ".claims" / dataset.content_id).mkdir()
    else:
        (dest / "dlio").mkdir(mode=0o700 if killed == "entering" else 0o755)
        (dest / "dlio" / ".claims").mkdir()

    def careful() -> None:
        staged = dlio.stage(dataset, dest)
        assert staged.root.parents[1] == dest / "dlio-u2001"
        assert_staged(staged, dataset)

    assert as_user(2001, careful) == 0
    assert dlio.stage(dataset, dest).root.parents[1] == dest


def test_roots_incomplete_copy_blocks_nobody_its_complete_copy_serves_all(dataset: Manifest, tmp_path: Path) -> None:
    open_to_all(tmp_path)

    def die(_: int) -> None:
        os._exit(9)

    assert Forked(lambda: dlio.stage(dataset, tmp_path / "tmp", report=die)).wait() == 9
    assert as_user(2001, lambda: assert_staged(dlio.stage(dataset, tmp_path / "tmp"), dataset)) == 0
    whole = dlio.stage(dataset, tmp_path / "tmp").root

    def other_user() -> None:
        assert dlio.stage(dataset, tmp_path / "tmp").root == whole

    assert as_user(2002, other_user) == 0


def test_both_names_taken_by_another_user(dataset: Manifest, tmp_path: Path) -> None:
    open_to_all(tmp_path)

    def squat() -> None:
        dlio.stage(dataset, tmp_path / "tmp")
        (tmp_path / "tmp" / "dlio-u2002").mkdir()

    def careful() -> None:
        with pytest.raises(StorageError, match="dlio-u2002 belongs to another user"):
            dlio.stage(dataset, tmp_path / "tmp")

    assert as_user(2001, squat) == 0
    assert as_user(2002, careful) == 0


def test_a_lease_of_another_user_stays_and_is_named(
    dataset: Manifest, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    open_to_all(tmp_path)
    staged = dlio.stage(dataset, tmp_path / "tmp")

    def other_user() -> None:
        assert clean(tmp_path / "tmp", job="7") == []
        assert "the lease of job '7'" in caplog.text

    assert as_user(2001, other_user) == 0
    assert [lease.job for lease in leases(folder_of(staged))] == ["7"]


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
    assert sorted(lease.job for lease in leases(folder_of(staged))) == ["7", "9"]
    (tmp_path / "tmp" / "dlio" / ".leases").chmod(0o755)

    def without_lease() -> None:
        os.setuid(65534)
        logging.getLogger("dlio").addHandler(logging.FileHandler("/dev/null"))
        assert dlio.stage(dataset, tmp_path / "tmp").root == staged.root

    assert Forked(without_lease).wait() == 0


def test_roots_copy_without_a_folder_of_leases_serves_all(dataset: Manifest, tmp_path: Path) -> None:
    staged = dlio.stage(dataset, open_to_all(tmp_path) / "local")
    shutil.rmtree(staged.root.parent / ".leases")

    def other_user() -> None:
        for strategy in ("replicate", "stripe"):
            assert dlio.stage(dataset, tmp_path / "tmp/local", strategy=strategy).root == staged.root

    assert as_user(2001, other_user) == 0
    assert dlio.stage(dataset, tmp_path / "tmp/local").root == staged.root
    assert [lease.job for lease in leases(folder_of(staged))] == ["7"], "who may write takes a lease"


def test_a_complete_copy_is_used_without_writing(dataset: Manifest, small_disk: Callable[[str], Path]) -> None:
    disk = small_disk("size=4m,mode=777")
    staged = dlio.stage(dataset, disk)
    disk.chmod(0o777)
    subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
    for strategy in ("replicate", "stripe"):
        assert dlio.stage(dataset, disk, strategy=strategy).root == staged.root


def test_resolve_does_not_trust_anybodys_copy(
    dataset: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    staged = dlio.stage(dataset, tmp_path / "local")
    os.chown(staged.root, 65534, 65534)
    for name in ("LOCAL_SCRATCH", "DLIO_STAGED"):
        monkeypatch.setenv(name, str(tmp_path / "local"))
        assert resolve(dataset.root) == dataset.root
    assert resolve(staged.root) == staged.root, "who names another user's copy gets it"


def test_a_folder_open_to_renames_is_refused_or_made_sticky(
    dataset: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_to_all(tmp_path)
    dest = tmp_path / "tmp"
    dest.chmod(0o777)

    def refused() -> None:
        with pytest.raises(StorageError, match=r"anybody could replace .* mode is 777: .* \(chmod \+t\)"):
            dlio.stage(dataset, dest)
        assert not list(dest.iterdir())

    assert as_user(2001, refused) == 0
    staged = dlio.stage(dataset, dest)
    assert [stat.S_IMODE(folder.stat().st_mode) for folder in (dest, dest / "dlio")] == [0o1777, 0o1777]
    dest.chmod(0o777)
    monkeypatch.setenv("DLIO_STAGED", str(dest))
    assert resolve(dataset.root) == dataset.root
    dest.chmod(0o1777)
    assert resolve(dataset.root) == staged.root


def test_a_lease_that_root_took_serves_the_jobs_user(
    dataset: Manifest, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    open_to_all(tmp_path)
    dlio.stage(dataset, tmp_path / "tmp")

    def use() -> None:
        caplog.clear()
        assert dlio.stage(dataset, tmp_path / "tmp").root == tmp_path / "tmp" / "dlio" / dataset.content_id
        assert caplog.messages == []

    assert as_user(2001, use) == 0
