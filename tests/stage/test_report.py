"""What `dlio stage` prints while it runs and afterwards."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shutil
import sys
from pathlib import Path

import pytest

import dlio
from dlio import cli
from dlio.cli import progress as progress_module
from dlio.cli.progress import Progress
from dlio.cli.stage import _Shown
from dlio.dataset.manifest import NAME, Manifest
from dlio.dataset.shard import files_of
from dlio.locking.claim import claimed
from dlio.locking.owner import Owner
from dlio.stage.copies import lease
from dlio.stage.copies.base_folder import open_up
from dlio.stage.copies.folder import StagedFolder
from dlio.stage.engine.complete import Following
from dlio.stage.meeting.peer import Peer
from tests.helpers.forked import Forked
from tests.helpers.staging import folder_of, node


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
    assert re.match(r"stage: 70 B of 200 B, 2 nodes, slowest node1 with 90 B left, .* left$", caplog.messages[1])


def test_the_progress_of_one_of_several_nodes_says_so(caplog: pytest.LogCaptureFixture, logged: None) -> None:
    with Progress("stage", unit="bytes", quiet=False) as progress:
        shown = _Shown(progress, node(0, 2))
        shown.expect(100)
        shown.here(30)
    assert "30 B of 100 B, on this node, " in caplog.messages[0]


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


def test_a_process_that_waits_for_another_ones_copy_says_so(
    dataset: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["stage", str(dataset.root), str(tmp_path / "local")]
    assert cli.main(where) == cli.main(where) == 0
    copied, found = capsys.readouterr().out.splitlines()[::2]
    assert copied.endswith("(replicate)") and found.endswith(": 6 samples in 7 shards, already here")
    folder = folder_of(dlio.stage(dataset, tmp_path / "local"))
    manifest, plain = folder.path / NAME, Following.is_done

    def is_done(following: Following) -> bool:
        (tmp_path / "manifest").rename(manifest)
        return plain(following)

    monkeypatch.setattr(Following, "is_done", is_done)
    manifest.rename(tmp_path / "manifest")
    with claimed(folder.claims, lambda: False):
        assert cli.main(where) == 0
    waited = r"shards, waited (less than 0\.01|\d+\.\d\d) s for the process that copied it$"
    assert re.search(waited, capsys.readouterr().out, re.MULTILINE)


def test_a_process_that_does_not_tell_how_far_it_is_is_named(
    dataset: Manifest, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As while the node's disk hangs."""
    folder = StagedFolder(tmp_path / "local", dataset.content_id)
    open_up(folder.dest)
    folder.begin(str(dataset.root))
    with claimed(folder.claims, lambda: False):
        assert cli.main(["stage", str(dataset.root), str(folder.dest), "--status"]) == 0
    filler = f"{Owner.current().process}, which fills it"
    assert f"{folder.path}: being filled, used by {filler}; how far it is cannot be asked" in capsys.readouterr().out


def test_who_waits_stats_no_file_of_a_complete_copy(
    dataset: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dlio.stage(dataset, tmp_path / "local")
    monkeypatch.delattr(StagedFolder, "missing")  # stats each file
    assert cli.main(["stage", str(dataset.root), str(tmp_path / "local"), "--wait"]) == 0


def test_a_copy_that_lost_files_is_not_called_complete(
    dataset: Manifest, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    local = str(tmp_path / "local")
    folder = folder_of(dlio.stage(dataset, local))

    def told() -> str:
        assert cli.main(["stage", str(dataset.root), local, "--status"]) == 0
        return capsys.readouterr().out

    assert told() == f"{folder.path}: complete\n"
    lost = [folder.path / file.name for file in files_of(dataset.shards)[-2:]]
    lost[0].unlink()
    lost[1].write_bytes(b"1")
    missing = f"{lost[0].name} is missing, or of another size (the first of 2 such files)"
    advice = f"dlio verify {folder.path} --repair restores it, dlio clean removes it\n"
    assert told() == f"{folder.path}: damaged: {missing}: {advice}"
    assert cli.main(["stage", str(dataset.root), local, "--status", "--json"]) == 0
    (copy,) = json.loads(capsys.readouterr().out)["copies"]
    assert copy == {"path": str(folder.path), "is_complete": False, "problem": missing}
    lost[1].unlink()
    shutil.copy(dataset.root / lost[1].name, lost[1])
    assert told() == f"{folder.path}: damaged: {missing.partition(' (')[0]}: {advice}"
    with (folder.path / NAME).open("ab") as manifest:
        manifest.write(b"{}\n")
    assert f": damaged: {folder.path / NAME}" in (damaged := told())
    assert damaged.endswith(f": {advice}") and damaged.count("--repair") == 1 and "pack again" not in damaged


def test_the_copy_of_a_file_that_has_changed_since_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file, local = tmp_path / "weights", str(tmp_path / "local")
    file.write_text("1")
    staged = dlio.stage(file, local)
    file.write_text("22")
    assert cli.main(["stage", str(file), local, "--status"]) == 0
    neither, before = capsys.readouterr().out.splitlines()
    assert neither == f"{file} is neither staged nor being staged on this node"
    assert before == f"{staged.root} is a copy of an earlier state of it: stage it again"
    kept = f"kept {staged.root}: used by {lease.holder_here().process} of user {os.geteuid()}\n"
    monkeypatch.setenv("SLURM_JOB_ID", "4711")
    assert cli.main(["clean", local]) == 0
    assert capsys.readouterr().out == kept
