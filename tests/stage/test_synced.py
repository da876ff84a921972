"""A file with its final name survives a loss of power: content is synced first, names before the manifest."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import dlio
from dlio.dataset.manifest import NAME, Manifest
from dlio.stage.copies import node_cache
from dlio.stage.copies.folder import StagedFolder
from dlio.stage.copies.node_cache import remove_unused
from tests.helpers import synced
from tests.helpers.staging import write_dataset
from tests.helpers.users import COPY


def test_a_staged_file_is_on_the_disk_before_it_gets_its_name(
    dataset: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = synced.watched(monkeypatch)
    staged = dlio.stage(dataset, tmp_path / "node", strategy="replicate")
    names = {path.relative_to(staged.root).name for path, _ in disk.named if path.is_relative_to(staged.root)}
    assert names >= {NAME, *(file.name for shard in dataset.shards for file in shard.files)}
    assert [path for path in disk.too_early if ".dlio" not in path.parts] == []
    assert staged.root not in disk.names_to_sync
    disk.names_to_sync.add(staged.root)  # as by a process that was killed after it had published the copy
    dlio.stage(dataset, tmp_path / "node", strategy="replicate")
    assert staged.root not in disk.names_to_sync


def test_the_name_of_a_finished_copy_is_on_the_disk(
    dataset: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a loss of power takes all of it, though a job was told that it is complete."""
    found: list[Path] = []
    cache = tmp_path / "node/dlio"

    def noted(descriptor: int) -> None:
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        if path != cache or (cache / dataset.content_id).exists():
            found.append(path)

    monkeypatch.setattr(os, "fsync", noted)
    dlio.stage(dataset, tmp_path / "node", strategy="replicate")
    assert {cache / dataset.content_id, cache, tmp_path / "node"} <= {*found}


def test_the_names_of_a_copy_are_on_the_disk_before_its_manifest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write_dataset(tmp_path / "source", [5, 6], stem="below/shard")
    disk = synced.watched(monkeypatch)
    unsynced: list[set[Path]] = []
    rename = disk.rename

    def looked_at(old: object, new: Path, **folders: int) -> None:
        if Path(new).name == NAME:
            unsynced.append({folder for folder in disk.names_to_sync if ".dlio" not in folder.parts})
        rename(old, new, **folders)

    monkeypatch.setattr(disk, "rename", looked_at)
    dlio.stage(source, tmp_path / "node", strategy="replicate")
    assert unsynced and not any(unsynced)


def test_the_folder_of_a_copys_marker_is_on_the_disk_before_any_file_has_a_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a loss of power may leave files in a folder that nobody takes for a copy."""
    found: list[Path] = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: found.append(Path(f"/proc/self/fd/{descriptor}").readlink()))
    folder = StagedFolder(tmp_path, COPY)
    folder.path.parent.mkdir()
    folder.begin("source")
    assert found[-2:] == [folder.path / ".dlio", folder.path]
    found.clear()
    folder.begin("source")  # who made the marker may have been killed before it was synced
    assert found == [tmp_path, folder.path.parent, folder.path / ".dlio", folder.path]


def test_a_copy_that_a_job_leases_while_it_is_removed_has_its_name_on_the_disk(
    dataset: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a loss of power leaves it under the name that it had in between, though the job was told of it."""
    staged, found = dlio.stage(dataset, tmp_path, strategy="replicate"), list[tuple[Path, bool]]()
    folder, looks = StagedFolder(tmp_path, dataset.content_id), iter([False, True])

    def noted(descriptor: int) -> None:
        found.append((Path(f"/proc/self/fd/{descriptor}").readlink(), staged.root.exists()))

    monkeypatch.setattr(node_cache, "is_in_use", lambda _: next(looks))
    monkeypatch.setattr(os, "fsync", noted)
    assert not remove_unused(folder)
    assert found == [(staged.root.parent, True)]
