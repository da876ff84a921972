"""Copies, pipes and folders that another user of the node plants are neither used nor waited for."""

from __future__ import annotations

import os
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

import dlio
from dlio import cli
from dlio.cluster.topology import Topology
from dlio.dataset.manifest import NAME, Manifest
from dlio.errors import ManifestError, StorageError
from dlio.stage.choose import choice
from dlio.stage.client.resolve import resolve
from dlio.stage.copies import lease
from dlio.stage.copies.folder import StagedFolder
from dlio.stage.planning.job import Job
from dlio.stage.sources import source_of
from dlio.stage.strategies import AUTO
from dlio.stage.upkeep.clean import clean
from tests.helpers.staging import assert_staged, write_dataset
from tests.helpers.users import ALICE, BOB, COPY, as_user, given_to_bob, is_whole, marked

pytestmark = [
    pytest.mark.usefixtures("job_7"),
    pytest.mark.skipif(os.geteuid() != 0, reason="becomes other users"),
    pytest.mark.timeout(60),
]


def claims_link(folder: StagedFolder, target: Path, _: Manifest) -> None:
    folder.claims.path.symlink_to(target)
    os.lchown(folder.claims.path, BOB, BOB)


def copy_with_a_link(folder: StagedFolder, target: Path, _: Manifest) -> None:
    marked(folder.path)
    (folder.path / ".dlio" / "aside").symlink_to(target)
    given_to_bob(folder.path)


def copy_with_a_pipe(folder: StagedFolder, _target: Path, _: Manifest) -> None:
    (folder.path / ".dlio").mkdir(parents=True)
    os.mkfifo(folder.path / ".dlio" / "copy.json")
    given_to_bob(folder.path)


def whole_copy(folder: StagedFolder, _target: Path, source: Manifest) -> None:
    marked(folder.path)
    for path in source.root.iterdir():
        (folder.path / path.name).write_bytes(path.read_bytes())
    given_to_bob(folder.path)


@pytest.mark.parametrize("plant", [claims_link, copy_with_a_link, copy_with_a_pipe, whole_copy])
def test_entries_planted_between_check_and_use_are_gone_round(
    dest: Path,
    thesis: Path,
    dataset: Manifest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    plant: Callable[[StagedFolder, Path, Manifest], None],
) -> None:
    """Root's lease tells Bob that a stage has looked and will soon begin."""
    dlio.stage(write_dataset(tmp_path / "earlier", [10], seed=3), dest)
    take = lease.take

    def planting(folder: StagedFolder) -> None:
        take(folder)
        monkeypatch.setattr(lease, "take", take)
        plant(folder, thesis, dataset)

    monkeypatch.setattr(lease, "take", planting)
    if plant is claims_link:  # no other user's folder, so that root must check it
        with pytest.raises(StorageError):
            dlio.stage(dataset, dest)
    staged = dlio.stage(dataset, dest)
    assert is_whole(thesis)
    assert_staged(staged, dataset)
    assert staged.root.parents[1] == dest / "dlio-u0"


def test_copies_of_linked_files_are_as_private_as_their_targets(dest: Path, dataset: Manifest, tmp_path: Path) -> None:
    dataset.root.chmod(0o700)
    (tmp_path / "links").mkdir()
    for path in dataset.root.iterdir():
        (tmp_path / "links" / path.name).symlink_to(path)
    staged = dlio.stage(tmp_path / "links", dest).root
    assert {stat.S_IMODE(path.stat().st_mode) for path in staged.glob("shard-*")} == {0o600}


def test_a_pipe_instead_of_a_shard_is_refused(dest: Path, dataset: Manifest) -> None:
    (dataset.root / "shard-00003.bin").unlink()
    os.mkfifo(dataset.root / "shard-00003.bin")
    with pytest.raises(StorageError, match=r"shard-00003.bin has 0 bytes"):
        dlio.stage(dataset, dest)


def test_a_folder_that_another_user_shuts_does_not_stop_clean(dest: Path, dataset: Manifest) -> None:
    def shut() -> None:
        (dest / "dlio").mkdir(mode=0o700)

    def day() -> None:
        staged = dlio.stage(dataset, dest).root
        assert clean(dest) == [staged]

    assert as_user(BOB, shut) == as_user(ALICE, day) == 0


def test_a_copy_open_to_all_with_anothers_marker_stops_nobody(dest: Path, dataset: Manifest) -> None:
    (dest / "dlio").mkdir(mode=0o755)
    (dest / "dlio" / dataset.content_id).mkdir()
    (dest / "dlio" / dataset.content_id).chmod(0o777)
    assert as_user(BOB, lambda: marked(dest / "dlio" / dataset.content_id)) == 0
    staged = dlio.stage(dataset, dest)
    assert staged.root.parents[1] == dest / "dlio-u0"
    assert clean(dest) == [staged.root]
    assert (dest / "dlio" / dataset.content_id / ".dlio" / "copy.json").exists()


def test_other_users_files_in_a_copy_are_left(dest: Path, dataset: Manifest, caplog: pytest.LogCaptureFixture) -> None:
    staged = dlio.stage(dataset, dest)
    staged.root.chmod(0o777)
    assert as_user(BOB, lambda: (staged.root / "planted").write_text("mine")) == 0
    assert clean(dest) == []
    assert "holds another user's files, such as 'planted'" in caplog.text
    assert [path.read_text() for path in dest.rglob("planted")] == ["mine"]


def test_a_copy_with_another_manifest_is_not_read(
    dest: Path, dataset: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    other = write_dataset(tmp_path / "other", [100], seed=9)
    monkeypatch.setenv("DLIO_STAGED", str(dest))
    poisoned = dlio.stage(other, dest).root.rename(dest / "dlio" / dataset.content_id)
    assert resolve(dataset.root) == dataset.root
    assert f"it holds another data set, {other.content_id}" in caplog.text
    with pytest.raises(ManifestError, match="holds another data set"):
        resolve(poisoned)
    assert cli.main(["stage", str(dataset.root), str(dest)]) == 4, "it is no place to copy to"
    clean(dest)
    assert_staged(dlio.stage(dataset, dest), dataset)
    assert resolve(dataset.root) == poisoned


def test_a_copy_with_a_damaged_manifest_is_ignored(
    dest: Path, dataset: Manifest, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("DLIO_STAGED", str(dest))
    (dlio.stage(dataset, dest).root / NAME).write_text("{")
    assert resolve(dataset.root) == dataset.root
    assert "a staged copy is ignored" in caplog.text


def test_folders_open_to_all_are_sticky_and_keep_the_group(dest: Path, dataset: Manifest) -> None:
    os.chown(dest, 0, BOB)
    dest.chmod(0o3777)
    dlio.stage(dataset, dest)
    for folder in (dest / "dlio", dest / "dlio" / ".claims", dest / "dlio" / ".leases"):
        assert (stat.S_IMODE(folder.stat().st_mode), folder.stat().st_gid) == (0o3777, BOB)


def test_a_cache_of_an_older_version_is_made_sticky(dest: Path, dataset: Manifest) -> None:
    for name in ("dlio", "dlio/.claims"):
        (dest / name).mkdir()
        (dest / name).chmod(0o777)
    assert dlio.stage(dataset, dest).root.parents[1] == dest / "dlio-u0", "what lies there may have been changed"


def test_a_copy_that_its_user_restores_stops_no_stage(
    small_disk: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = small_disk("size=25m,mode=1777")
    (disk / "dlio").mkdir(mode=0o755)
    given_to_bob(marked(disk / "dlio" / COPY))
    remove = StagedFolder.remove

    def restored(folder: StagedFolder) -> None:
        remove(folder)
        if not (disk / "dlio" / COPY).exists():
            given_to_bob(marked(disk / "dlio" / COPY))

    monkeypatch.setattr(StagedFolder, "remove", restored)
    with pytest.raises(StorageError, match="are needed"):
        dlio.stage(write_dataset(tmp_path / "source", [30 << 20]), disk)


def test_copies_are_not_made_on_a_users_file_system(
    dest: Path, dataset: Manifest, tmp_path: Path, slow_source: Callable[..., Path]
) -> None:
    """If /etc/fuse.conf lets others in, Bob's own process may say that DEST/dlio is root's."""
    (tmp_path / "of-bob").mkdir()
    (dest / "dlio").mkdir()
    subprocess.run(["mount", "--bind", slow_source(tmp_path / "of-bob"), dest / "dlio"], check=True)
    try:
        assert dlio.stage(dataset, dest).root.parents[1] == dest / "dlio-u0"
    finally:
        subprocess.run(["umount", dest / "dlio"], check=True)


def test_another_users_copy_does_not_decide_the_destination(
    dest: Path, dataset: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = [tmp_path / "fast", dest]
    folders[0].mkdir()
    monkeypatch.setattr(choice, "local_folders", lambda: [("announced", each) for each in folders])
    (dest / "dlio").mkdir(mode=0o755)
    whole_copy(StagedFolder(dest, dataset.content_id), dest, dataset)
    job = Job(source_of(dataset), Path(), Topology(0, 1))
    assert choice.with_dest(job, AUTO).dest == folders[0]
