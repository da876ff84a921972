"""What `dlio stage` tells while it works and afterwards."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path

from dlio import cli
from dlio.manifest import Manifest

from .conftest import Forked


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
