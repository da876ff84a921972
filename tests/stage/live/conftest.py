"""A data set for agents, sources that are slow or held up, and the end of agents."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dlio.dataset.manifest import File, Manifest
from dlio.stage.copies.folder import StagedFolder
from dlio.stage.copies.live_folder import LiveFolder, end_agents
from dlio.stage.sources import MountedFolder
from tests.helpers.staging import MiB, write_dataset


@pytest.fixture
def source(tmp_path: Path) -> Manifest:
    """Sixteen shards of 3 MiB, an empty and a tiny one."""
    return write_dataset(tmp_path / "source", [3 * MiB + 7] * 16 + [0, 1])


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Makes each read of the source take 20 ms, and notes its offset and length."""
    reads: list[tuple[int, int]] = []
    plain = MountedFolder.read_range

    def read_range(self: MountedFolder, file: object, offset: int, target: memoryview) -> None:
        time.sleep(0.02)
        reads.append((offset, len(target)))
        plain(self, file, offset, target)  # type: ignore[arg-type]

    monkeypatch.setattr(MountedFolder, "read_range", read_range)
    return reads


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[threading.Event, list[str]]]:
    """An event that reads of the source wait for, except for the last shards; and the names of the files read."""
    opened, names = threading.Event(), []
    plain = MountedFolder.read_range

    def read_range(self: MountedFolder, file: File, offset: int, target: memoryview) -> None:
        names.append(file.name)
        if file.name != "shard-00014.bin":
            assert opened.wait(60)
        plain(self, file, offset, target)

    monkeypatch.setattr(MountedFolder, "read_range", read_range)
    yield opened, names
    opened.set()


@pytest.fixture
def ended() -> Iterator[list[StagedFolder]]:
    """Folders whose agents are ended after the test."""
    folders: list[StagedFolder] = []
    yield folders
    for folder in folders:
        end_agents([LiveFolder(folder)])
