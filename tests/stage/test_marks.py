"""The facts that decide whether a copy is used, continued or removed, one by one."""

from __future__ import annotations

import errno
import json
import os
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

import dlio
from dlio.dataset.manifest import NAME, Manifest
from dlio.dataset.shard import files_of
from dlio.errors import ManifestError, StorageError
from dlio.io import world
from dlio.io.open_folder import OpenFolder
from dlio.locking import claim_file
from dlio.locking.claim_file import Claim
from dlio.locking.owner import Owner
from dlio.rights.as_owner import switch_user
from dlio.stage.copies import lease
from dlio.stage.copies.base_folder import CONTROL, is_closed, marker_of, may_change, open_up
from dlio.stage.copies.blocks import BLOCK_BYTES, Blocks
from dlio.stage.copies.folder import StagedFolder
from dlio.stage.copies.live_folder import LiveFolder
from dlio.stage.copies.locations import is_safe
from dlio.stage.engine.complete import begin_copy, residue_removed
from dlio.stage.run import run
from dlio.stage.upkeep.repair import manifest_at_rest
from tests.helpers.forked import Forked
from tests.helpers.staging import folder_of, write_dataset
from tests.helpers.users import BOB, COPY, as_user

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="gives files to another user")


@as_root
def test_a_marker_counts_only_if_it_and_its_folder_are_the_copys_owners(tmp_path: Path) -> None:
    control = tmp_path / "copy/.dlio"
    control.mkdir(parents=True)
    (control / "copy.json").write_text("{}")
    for path, is_marker in ((None, True), (control / "copy.json", False), (control, False)):
        if path:
            os.chown(path, BOB, BOB)
        with OpenFolder.at(tmp_path / "copy") as copy:
            assert (marker_of(copy) is not None) == is_marker
        os.chown(control / "copy.json", 0, 0)


def test_a_folder_without_a_marker_is_never_removed(tmp_path: Path) -> None:
    folder = StagedFolder(tmp_path, COPY)
    (folder.path / ".dlio").mkdir(parents=True)
    (folder.path / "thesis.tex").touch()
    with pytest.raises(StorageError, match="has no dlio marker"):
        folder.remove()
    assert (folder.path / "thesis.tex").exists()


def test_only_the_unfinished_files_of_the_dead_are_taken_over(tmp_path: Path) -> None:
    folder = StagedFolder(tmp_path, COPY)
    open_up(tmp_path)
    living = Claim(1, Owner.current(), "living")
    dead = Claim(1, replace(Owner.current(), started=1), "dead")
    begun = folder.path / ".dlio/live/files/begun"
    for previous, is_taken in ((living, False), (dead, True)):
        begun.parent.mkdir(parents=True)
        begun.touch()
        folder.path.chmod(0o700)
        begin_copy(folder, "/source", (Claim(2, Owner.current(), "mine"), previous))
        assert begun.exists() == is_taken


@pytest.mark.parametrize("marker", ["missing", "another's"])
def test_a_copy_without_its_own_marker_is_not_complete(marker: str, dataset: Manifest, tmp_path: Path) -> None:
    folder = folder_of(dlio.stage(dataset, tmp_path / "local"))
    assert folder.holds(files_of(dataset.shards))
    if marker == "missing":
        folder.marker.unlink()
    else:
        folder.marker.write_text(json.dumps({"copy": COPY, "source": "/data"}))
    assert not folder.holds(files_of(dataset.shards)) and (folder.path / NAME).exists()


def test_a_jobs_lease_outlives_the_process_that_took_it(tmp_path: Path, job_7: None) -> None:
    open_up(tmp_path)
    folder = StagedFolder(tmp_path, COPY)
    assert Forked(lambda: lease.take(folder)).wait() == 0
    assert [each.job for each in lease.leases(folder)] == ["7"]


def test_a_lease_ends_after_a_week_whatever_time_its_user_sets(
    tmp_path: Path, job_7: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_up(tmp_path)
    folder = StagedFolder(tmp_path, COPY)
    lease.take(folder)
    (taken,) = lease.leases(folder)
    now = time.time()
    os.utime(tmp_path / "dlio/.leases" / taken.name, (now + 9e6, now + 9e6))
    monkeypatch.setattr(world, "wall", lambda: now + 8 * 86400)
    assert lease.leases(folder) == []


def test_a_session_drops_its_own_lease_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    open_up(tmp_path)
    folder, other = StagedFolder(tmp_path, COPY), os.getppid()
    holder = replace(Owner.current(), pid=other, started=world.start_time(other) or 0)
    with monkeypatch.context() as patch:
        patch.setattr(lease, "_session", lambda: holder)
        lease.take(folder)
    lease.take(folder)
    lease.drop(folder.dest, "", folder.copy)
    assert [each.holder for each in lease.leases(folder)] == [holder]


@as_root
def test_a_user_changes_only_what_is_theirs_and_root_all() -> None:
    def look() -> None:
        assert may_change(BOB) and not may_change(0)

    assert as_user(BOB, look) == 0
    assert may_change(BOB) and may_change(0)


def test_a_folder_that_all_may_write_to_gets_a_sticky_one_below(tmp_path: Path) -> None:
    for mode, expected in ((0o777, 0o1777), (0o755, 0o755)):
        dest = tmp_path / f"{mode:o}"
        dest.mkdir()
        dest.chmod(mode)
        with OpenFolder.at(dest) as opened:
            before = opened.status
        open_up(dest)
        assert before.st_mode & 0o7777 == mode
        assert {path.stat().st_mode & 0o7777 for path in dest.rglob("*")} == {expected}


def test_a_link_is_no_closed_folder(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to("folder")
    (tmp_path / "file").touch(mode=0o600)
    closed = [is_closed(path.lstat(), {os.geteuid()}) for path in sorted(tmp_path.iterdir())]
    assert closed == [False, True, False]


@as_root
@pytest.mark.parametrize("name", ["dlio", "dlio/.claims", "dlio/.leases", f"dlio/{COPY}"])
def test_no_copy_is_safe_below_another_users_folder(name: str, tmp_path: Path) -> None:
    open_up(tmp_path)
    folder = StagedFolder(tmp_path, COPY)
    folder.path.mkdir(mode=0o700)
    assert is_safe(folder, 0)
    os.chown(tmp_path / name, BOB, BOB)
    assert not is_safe(folder, 0)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_a_full_disk_takes_a_copy_only_while_that_was_never_complete(
    number: int, dataset: Manifest, tmp_path: Path
) -> None:
    complete = folder_of(dlio.stage(dataset, tmp_path / "local"))
    begun = StagedFolder(tmp_path, COPY)
    open_up(tmp_path)
    begun.begin("/source")
    for folder in (complete, begun):
        mine = claim_file.make(folder.claims, 1)
        assert mine
        with pytest.raises(StorageError), residue_removed(folder, mine):
            raise StorageError(number, "it fails")
    assert complete.holds(files_of(dataset.shards))
    assert begun.path.exists() == (number == errno.EIO)


def test_a_thread_that_still_writes_leaves_nothing_without_a_marker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It hangs in a slow disk when this one is full, and names its file while the copy is removed."""
    folder, begun = StagedFolder(tmp_path, COPY), tmp_path / "begun"
    open_up(tmp_path)
    folder.begin("/source")
    begun.touch()
    mine = claim_file.make(folder.claims, 1)
    remove = OpenFolder.remove

    def late(opened: OpenFolder, name: str, *more: int) -> bool:
        if name == CONTROL:
            with suppress(FileNotFoundError):
                begun.rename(folder.path / "shard-00000.bin")
        return remove(opened, name, *more)

    assert mine
    with monkeypatch.context() as patch, pytest.raises(StorageError), residue_removed(folder, mine):
        patch.setattr(OpenFolder, "remove", late)
        raise StorageError(errno.ENOSPC, "it is full")
    folder.begin("/source")
    assert folder.marked_as() == COPY


def test_a_loss_of_power_while_a_copy_is_removed_leaves_no_files_without_a_marker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, synced = StagedFolder(tmp_path, COPY), list[str]()
    open_up(tmp_path)
    folder.begin("/source")
    (folder.path / "shard-00000.bin").touch()
    fsync = world.fsync

    def noted(descriptor: int) -> None:
        assert folder.marker.exists()
        synced.extend(os.listdir(descriptor))
        fsync(descriptor)

    monkeypatch.setattr(world, "fsync", noted)
    folder.remove()
    assert synced == [".dlio"] and not folder.path.exists()


@pytest.mark.parametrize("begun, expected", [(0, 10), (4, 6), (-4, 16)], ids=["new", "begun", "wrong"])
def test_only_the_missing_blocks_of_a_begun_file_are_read_unless_one_is_wrong(
    begun: int, expected: int, tmp_path: Path
) -> None:
    source = write_dataset(tmp_path / "source", [10 * BLOCK_BYTES])
    (file,) = source.shards[0].files
    data, there = (source.root / file.name).read_bytes(), abs(begun) * BLOCK_BYTES
    live = LiveFolder(StagedFolder(tmp_path / "local", source.content_id))
    open_up(tmp_path / "local")
    live.staged.path.mkdir(mode=0o700)
    live.staged.begin("/source")
    live.make()
    live.blocks(file).parent.mkdir()
    Blocks.create(live.blocks(file), file.num_bytes).set(0, there)
    live.unfinished(file).write_bytes((data if begun >= 0 else b"wrong").ljust(len(data), b"!"))
    staged, summary = run(source, tmp_path / "local", strategy="replicate")
    assert (staged.root / file.name).read_bytes() == data
    assert summary.source_bytes == expected * BLOCK_BYTES


def test_a_whole_manifest_of_another_data_set_is_not_the_copys(dataset: Manifest, tmp_path: Path) -> None:
    folder = folder_of(dlio.stage(dataset, tmp_path / "local"))
    assert manifest_at_rest(folder) == dataset
    write_dataset(tmp_path / "other", [5]).save(folder.path)
    with pytest.raises(ManifestError, match="not its folder's"):
        manifest_at_rest(folder)


@as_root
def test_becoming_a_user_without_an_account_leaves_none_of_roots_groups() -> None:
    def become_bob() -> None:
        os.setgroups([0, 4])
        switch_user(BOB)
        assert os.getgroups() == []

    assert Forked(become_bob).wait() == 0
