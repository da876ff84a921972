"""The files that an agent and the loaders exchange are their user's own."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dlio.locking.owner import Owner
from dlio.stage.copies.folder import StagedFolder
from dlio.stage.copies.live_folder import AGENT, FILES, TASK, AgentRecord, LiveFolder
from tests.helpers.users import BOB


@pytest.fixture
def live(tmp_path: Path) -> LiveFolder:
    """The folder of a copy with an agent that runs."""
    found = LiveFolder(StagedFolder(tmp_path, "0" * 32))
    found.staged.path.mkdir(parents=True)
    found.make()
    found.write_record(AgentRecord(Owner.current(), "socket", 0, 1))
    found.keep_task("{}")
    return found


def read(live: LiveFolder) -> list[bool]:
    return [found is not None for found in (live.agent(), live.task())]


def test_what_the_agent_wrote_is_read(live: LiveFolder) -> None:
    assert read(live) == [True, True]
    assert {(live.path / name).stat().st_mode & 0o777 for name in (TASK,)} == {0o600}


def test_of_two_processes_that_make_a_folder_of_files_one_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One counts as lost to the other, and both continue: the second's files are removed again."""
    live = LiveFolder(StagedFolder(tmp_path, "0" * 32))
    live.staged.path.mkdir(parents=True)
    plain = Path.symlink_to

    def late(link: Path, target: str) -> None:
        (live.path / "files-1").mkdir()
        plain(link, "files-1")
        plain(link, target)

    monkeypatch.setattr(Path, "symlink_to", late)
    live.make()
    assert live.files == live.path / "files-1" and sorted(each.name for each in live.path.iterdir()) == [
        FILES, "files-1",
    ]  # fmt: skip


@pytest.mark.skipif(os.geteuid() != 0, reason="gives files to another user")
def test_files_of_another_user_are_not_read(live: LiveFolder) -> None:
    for name in (AGENT, TASK):
        os.chown(live.path / name, BOB, BOB)
    assert read(live) == [False, False]
    assert live.agent(BOB) is None, "the folder is not Bob's"


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a folder to another user")
def test_a_folder_of_another_user_is_not_read(live: LiveFolder) -> None:
    os.chown(live.path, BOB, BOB)
    assert read(live) == [False, False]


@pytest.mark.parametrize("mode", [0o620, 0o602])
def test_files_that_others_can_write_are_not_read(live: LiveFolder, mode: int) -> None:
    for name in (AGENT, TASK):
        (live.path / name).chmod(mode)
    assert read(live) == [False, False]
