"""What the folder of a staged copy has, and lacks."""

from __future__ import annotations

from pathlib import Path

import pytest

from dlio.dataset.manifest import File
from dlio.stage.cache.folder import StagedFolder


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
