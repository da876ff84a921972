"""Agents of several nodes on this machine, each with its own folder."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from dlio.stage.client.start import ensure_agent
from dlio.stage.copies.folder import StagedFolder
from dlio.stage.copies.live_folder import LiveFolder
from tests.helpers.staging import node

_END_SECONDS = 20.0


@contextmanager
def agents(tmp_path: Path) -> Iterator[Callable[..., list[StagedFolder]]]:
    """Yields a function that starts agents, and ends them all afterwards."""
    started: list[StagedFolder] = []

    def start(dataset: str | Path, strategy: str, num_nodes: int, cache_bytes: int | None = None) -> list[StagedFolder]:
        """Returns the folder of the copy of each node."""
        folders = []
        for rank in range(num_nodes):
            (dest := tmp_path / f"node{rank}").mkdir(exist_ok=True)
            topology = node(rank, num_nodes)
            found = ensure_agent(dataset, dest, strategy=strategy, topology=topology, cache_bytes=cache_bytes)
            folders.append(found)
        started.extend(folders)
        return folders

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DLIO_LAUNCHER", "single")
        patch.setenv("DLIO_MEET", str(tmp_path / "meet"))
        patch.setenv("DLIO_INTERFACE", "127.0.0.1")
        (tmp_path / "meet").mkdir(mode=0o700, exist_ok=True)
        try:
            yield start
        finally:
            for folder in started:
                end_agent(folder)


def end_agent(folder: StagedFolder, number: int = signal.SIGTERM) -> None:
    """Ends the agent of a copy if it still runs."""
    record = LiveFolder(folder).agent()
    if record is None:
        return
    with suppress(ProcessLookupError):
        os.kill(record.owner.pid, number)
    deadline = time.monotonic() + _END_SECONDS
    while record.owner.is_alive() is not False:
        assert time.monotonic() < deadline, f"the agent of {folder.path} does not end"
        time.sleep(0.02)
