"""The node cache: copies that are not in use may be removed, oldest first, and a data set is found where it is."""

from __future__ import annotations

import errno
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import dlio
from dlio.dataset.manifest import Manifest
from dlio.errors import StorageError
from dlio.io.open_folder import OpenFolder
from dlio.locking import claim_file
from dlio.locking.claim import claimed
from dlio.stage.client.resolve import resolve
from dlio.stage.copies.base_folder import open_up
from dlio.stage.copies.folder import StagedFolder
from dlio.stage.copies.lease import take
from dlio.stage.copies.locations import own_dest
from dlio.stage.copies.node_cache import copies, is_being_filled, is_in_use
from dlio.stage.engine.complete import residue_removed
from dlio.stage.upkeep.clean import clean
from tests.helpers.forked import Forked, wait_for
from tests.helpers.staging import MiB, assert_staged, folder_of, write_dataset

pytestmark = pytest.mark.usefixtures("job_7")


def three(tmp_path: Path, size: int = 10 * MiB) -> list[Manifest]:
    return [write_dataset(tmp_path / f"source{seed}", [size], seed=seed) for seed in range(3)]


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
    with pytest.raises(StorageError, match=f"{first.content_id} stays: used by job 7") as caught:
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
    with pytest.raises(StorageError, match="has no dlio marker"):
        folder_of(unmarked).remove()


def test_an_interrupted_removal_is_finished_or_undone(dataset: Manifest, tmp_path: Path) -> None:
    """Another process's `clean` comes while another decides about a copy, or finds the leftovers of a killed one."""
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


def test_staging_anew_during_a_removal_keeps_its_claim(
    dataset: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = folder_of(dlio.stage(dataset, tmp_path / "local"))
    remove = StagedFolder.remove

    def staged_anew(removed: StagedFolder) -> None:
        with claimed(folder.claims, lambda: False):
            remove(removed)
            assert is_being_filled(folder)

    monkeypatch.setattr(StagedFolder, "remove", staged_anew)
    assert clean(tmp_path / "local") == [folder.path]


BEFORE_THE_MARKER = ["", ".dlio", ".dlio/aside", ".dlio/aside/.copy.json.0123456789abcdef.tmp", ".dlio/aside/copy.json"]


@pytest.mark.parametrize("left", BEFORE_THE_MARKER)
def test_clean_removes_what_a_stage_killed_early_leaves(tmp_path: Path, left: str) -> None:
    folder = StagedFolder(tmp_path / "local", "0123456789abcdef" * 2)
    (folder.path / left).mkdir(parents=True)
    if "copy.json" in left:
        (folder.path / left).rmdir()
        (folder.path / left).write_text("{")
    clean(tmp_path / "local")
    assert not list((tmp_path / "local").iterdir())


def test_files_without_a_marker_are_left(tmp_path: Path) -> None:
    folder = StagedFolder(tmp_path / "local", "0123456789abcdef" * 2)
    (folder.path / ".dlio" / "aside").mkdir(parents=True)
    for name in (".dlio/aside/thesis.tex", ".dlio/copy", "thesis.tex"):
        (folder.path / name).touch()
        clean(tmp_path / "local")
        assert (folder.path / name).exists()
        (folder.path / name).unlink()
        (folder.path / ".dlio" / "aside").mkdir(parents=True, exist_ok=True)


@pytest.mark.parametrize("number", [errno.ENOENT, errno.ENOSPC])
def test_an_owner_that_wakes_up_spares_its_successors_files(number: int, dataset: Manifest, tmp_path: Path) -> None:
    folder = StagedFolder(tmp_path / "local", dataset.content_id)
    open_up(folder.dest)
    folder.begin("/source")
    sleeper, successor = (claim_file.make(folder.claims, number) for number in (1, 2))
    assert sleeper and successor
    begun = folder.path / ".dlio/live/files/begun"
    begun.mkdir(parents=True)
    for mine, is_spared in ((sleeper, True), (successor, False)):
        with pytest.raises(StorageError), residue_removed(folder, mine):
            raise StorageError(number, "it fails")
        assert begun.exists() == is_spared


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
    wait_for(ready)
    assert clean(tmp_path / "local", job="7") == []
    child.kill()
    assert len(clean(tmp_path / "local", job="7")) == 1
    assert not list((tmp_path / "local").iterdir())


def test_a_copy_leased_at_the_last_moment_is_not_removed(
    dataset: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    staged = dlio.stage(dataset, tmp_path / "local")
    folder = folder_of(staged)
    clean(tmp_path / "local", keep=True)
    rename = OpenFolder.rename

    def leased_meanwhile(opened: OpenFolder, name: str, new: str) -> None:
        if name == folder.copy:
            take(folder)
        rename(opened, name, new)

    monkeypatch.setattr(OpenFolder, "rename", leased_meanwhile)
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
    shutil.rmtree(own_dest(tmp_path) / "dests")  # else it is found wherever it is: see test_remembered.py
    assert resolve(dataset.root) == dataset.root
    monkeypatch.setenv("LOCAL_SCRATCH", str(tmp_path / "local"))
    assert resolve(dataset.root) == staged.root
    assert is_in_use(folder_of(staged))
    monkeypatch.setenv("LOCAL_SCRATCH", "/nowhere")
    monkeypatch.setenv("DLIO_STAGED", f"/nowhere:{tmp_path / 'local'}")
    assert resolve(dataset.root) == staged.root
