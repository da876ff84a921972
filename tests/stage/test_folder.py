"""What the folder of a staged copy has, and lacks."""

from __future__ import annotations

from pathlib import Path

import pytest

import dlio
from dlio.dataset.manifest import NAME, File
from dlio.dataset.shard import files_of
from dlio.errors import StorageError
from dlio.io.open_folder import OpenFolder
from dlio.stage.copies.folder import StagedFolder
from tests.helpers.staging import folder_of, node, write_dataset


@pytest.mark.parametrize("count", [3, 500])
def test_absent_and_incomplete_files_are_missing_in_order(count: int, tmp_path: Path) -> None:
    folder = StagedFolder(tmp_path, "copy")
    (folder.path / "below").mkdir(parents=True)
    wanted = [File(f"{'below/' if number % 2 else ''}{number}", 3, "") for number in range(count)]
    for file in wanted[1:]:
        (folder.path / file.name).write_bytes(b"abc")
    (folder.path / wanted[-1].name).write_bytes(b"ab")
    gone = File("nowhere/1", 1, "")
    assert folder.missing([*wanted, gone]) == [wanted[0], wanted[-1], gone]


def test_a_folder_that_is_not_there_lacks_all(tmp_path: Path) -> None:
    wanted = [File("a/b", 1, ""), File("c", 1, "")]
    assert StagedFolder(tmp_path, "copy").missing(wanted) == wanted


@pytest.mark.parametrize("below", ["", "below/"])
def test_a_copy_holds_its_files_whatever_else_lies_there(below: str, tmp_path: Path) -> None:
    manifest = write_dataset(tmp_path / "source", [1, 2, 3], stem=f"{below}shard")
    folder = folder_of(dlio.stage(manifest, tmp_path / "local", topology=node(0, 1)))
    wanted = files_of(manifest.shards)
    assert folder.holds(wanted) and folder.holds(wanted[1:])
    moved = folder.path / wanted[0].name
    moved.rename(moved.with_name("other"))  # as many names as before
    assert not folder.holds(wanted) and folder.holds(wanted[1:])
    moved.write_bytes(b"1")
    assert folder.holds(wanted)
    (folder.path / NAME).unlink()
    assert not folder.holds(wanted)


def test_a_copy_whose_removal_stops_is_not_taken_for_complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = write_dataset(tmp_path / "source", [1, 2, 3], stem="a")
    folder = folder_of(dlio.stage(manifest, tmp_path / "local", topology=node(0, 1)))
    unlink = OpenFolder.unlink

    def refuse(opened: OpenFolder, name: str) -> None:
        if name.startswith("a-"):
            raise OSError(5, "Input/output error")
        unlink(opened, name)

    monkeypatch.setattr(OpenFolder, "unlink", refuse)
    with pytest.raises(StorageError, match="cannot remove"):
        folder.remove()
    assert not folder.holds(files_of(manifest.shards)) and folder.marker.exists()
