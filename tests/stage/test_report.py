"""What `dlio stage` prints while it runs and afterwards."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import sys
from pathlib import Path

import pytest

from dlio import cli
from dlio.cli import progress as progress_module
from dlio.cli.progress import Progress
from dlio.cli.stage import _Shown
from dlio.dataset.manifest import Manifest
from dlio.locking.owner import Owner
from dlio.stage.meeting.peer import Peer
from tests.helpers.forked import Forked
from tests.helpers.staging import node


@pytest.fixture
def logged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Writes progress as into a log file, a line at every step."""
    monkeypatch.setattr(progress_module, "LOG_SECONDS", 0.0)
    monkeypatch.setattr(sys, "stderr", io.StringIO())


def told(rank: int, staged: int) -> Peer:
    """Returns the report of a node that lacked 100 bytes."""
    return Peer(rank, ("", 0), Owner(f"node{rank}/boot", "pid:[1]", 1, 1), False, 900 + staged, 1000, had_bytes=900)


def test_the_progress_of_all_nodes_names_the_slowest(caplog: pytest.LogCaptureFixture, logged: None) -> None:
    with Progress("stage", unit="bytes", quiet=False) as progress:
        shown = _Shown(progress, node(0, 2))
        shown.everywhere([told(0, 0), told(1, 0)])
        shown.here(7)  # is in the nodes' reports
        shown.everywhere([told(0, 60), told(1, 10)])
    assert len(caplog.messages) == 2
    assert re.match(r"stage: 70\.0 of 200B, 2 nodes, slowest node1 with 90 B left, .* left$", caplog.messages[1])


def test_the_progress_of_one_of_several_nodes_says_so(caplog: pytest.LogCaptureFixture, logged: None) -> None:
    with Progress("stage", unit="bytes", quiet=False) as progress:
        shown = _Shown(progress, node(0, 2))
        shown.expect(100)
        shown.here(30)
    assert "30.0 of 100B, on this node, " in caplog.messages[0]


def stage_as(local_rank: int, dataset: Manifest, dest: Path, output: Path) -> None:
    """Runs `dlio stage --json` as one of three processes of a node."""
    os.environ |= {"RANK": str(local_rank), "LOCAL_RANK": str(local_rank), "GROUP_RANK": "0"}
    os.environ |= {"WORLD_SIZE": "3", "LOCAL_WORLD_SIZE": "3", "DLIO_LAUNCHER": "torchrun"}
    with output.open("w") as file, contextlib.redirect_stdout(file):
        assert cli.main(["stage", str(dataset.root), str(dest), "--strategy", "replicate", "--json"]) == 0


def test_each_node_prints_one_object_of_all_that_it_did(dataset: Manifest, tmp_path: Path) -> None:
    for expected in (dataset.num_bytes, 0):
        outputs = [tmp_path / f"out{rank}" for rank in (2, 1, 0)]
        running = [
            Forked(lambda rank=rank, output=output: stage_as(rank, dataset, tmp_path / "local", output))
            for rank, output in zip((2, 1, 0), outputs, strict=True)
        ]
        assert [process.wait() for process in running] == [0, 0, 0]
        assert [output.read_text() for output in outputs[:2]] == ["", ""]
        report = json.loads(outputs[2].read_text())
        assert (report["source_bytes"], report["copied_bytes"]) == (expected, expected)
        assert report["path"] == str(tmp_path / "local" / "dlio" / dataset.content_id)
