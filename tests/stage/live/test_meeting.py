"""Meetings of nodes remove what is their own, and nothing else."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dlio.stage.live.agent.meeting import Meeting, folder_of
from tests.helpers.live import meet_in

CONTENT = "0" * 32
_LONG_AGO = (1_000_000_000, 1_000_000_000)


def test_only_old_meetings_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    meet_in(tmp_path, monkeypatch)
    around = folder_of(CONTENT).parent
    foreign = [tmp_path / "huggingface", around / "huggingface", around / f"with-more-{CONTENT}"]
    ours = around / f"old-{CONTENT}"
    for folder in (*foreign, ours):
        folder.mkdir(parents=True)
        (folder / "token").write_text("secret")
    (foreign[2] / "more").write_text("kept")
    for folder in (*foreign, ours):
        os.utime(folder, _LONG_AGO)
    Meeting(CONTENT, 0, 2).leave()
    assert not ours.exists() and not folder_of(CONTENT).exists()
    assert all((folder / "token").exists() for folder in foreign[:2]) and (foreign[2] / "more").exists()
