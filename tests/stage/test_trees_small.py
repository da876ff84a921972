"""Small files of a folder that is staged come in groups, which are synced at once, and read again by who goes on."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

import dlio
from dlio.cli import main
from dlio.dataset.manifest import NAME, Manifest
from dlio.io import filesystems
from dlio.stage.job import Listeners
from dlio.stage.run import run
from dlio.stage.transfer.tree import TreeFolder
from tests.helpers.agents import end_agent
from tests.helpers.forked import Forked
from tests.helpers.staging import folder_of
from tests.helpers.trees import make_tree, snapshot


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return make_tree(tmp_path / "shared" / "env", small=40)


def group_of(tree: Path, name: str) -> int:
    """Returns the size of the group that a file comes with."""
    shards = TreeFolder(tree).manifest.shards
    return next(shard.num_bytes for shard in shards if any(file.name == name for file in shard.files))


def test_small_files_that_a_loss_of_power_has_emptied_are_copied_again(tree: Path, tmp_path: Path) -> None:
    staged = dlio.stage(tree, tmp_path / "local")
    (staged.root / NAME).unlink()
    lost = staged.path / "small-007"
    lost.write_bytes(bytes(lost.stat().st_size))
    again, summary = run(tree, tmp_path / "local")
    assert summary.source_bytes == group_of(tree, "env/small-007")
    assert snapshot(again.path) == snapshot(tree) and dlio.verify(again) == []


@pytest.mark.parametrize("group", [0, 2])
def test_a_killed_copy_of_small_files_goes_on_with_whole_groups(tree: Path, tmp_path: Path, group: int) -> None:
    for number in range(1100):  # three groups
        (tree / f"more-{number}").write_bytes(b"%d" % number)
    reported = list[int]()

    def report(more: int) -> None:
        reported.append(more)
        if len(reported) == group + 2:
            os.kill(os.getpid(), 9)

    assert Forked(lambda: run(tree, tmp_path / "local", listeners=Listeners(report=report))).wait() != 0
    assert not list((tmp_path / "local").glob(f"dlio/*/{NAME}"))
    staged, summary = run(tree, tmp_path / "local")
    assert summary.source_bytes < staged.num_bytes and snapshot(staged.path) == snapshot(tree)


def test_all_small_files_are_synced_at_once(tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced, singly = list[int](), list[int]()
    monkeypatch.setattr(filesystems, "_TELL", {filesystems.filesystem_of(tmp_path).type})
    monkeypatch.setattr(filesystems, "syncfs", synced.append)
    monkeypatch.setattr(os, "fsync", singly.append)
    staged = dlio.stage(tree, tmp_path / "local")
    assert len(synced) == 1 and len(singly) < 30 and snapshot(staged.path) == snapshot(tree)


def test_a_group_whose_digests_a_manifest_tells_is_fetched_file_by_file(tree: Path, tmp_path: Path) -> None:
    staged = dlio.stage(tree, tmp_path / "local")
    again = dlio.stage(Manifest.load(staged.root), tmp_path / "other")
    assert snapshot(again.path) == snapshot(tree)


def test_an_agent_lists_nothing_again(
    tree: Path, tmp_path: Path, slow_source: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    lists = tmp_path / "lists"
    mounted = slow_source(tree.parent, "--lists", str(lists)) / "env"
    assert main(["stage", str(mounted), str(tmp_path / "local"), "--background"]) == 0
    path = Path(capsys.readouterr().out.splitlines()[-1])
    assert sorted(lists.read_text().splitlines()) == ["/env", "/env/bin", "/env/empty", "/env/empty/inner"]
    assert main(["stage", str(mounted), str(tmp_path / "local"), "--wait", "--quiet"]) == 0
    end_agent(folder_of(Manifest.load(path)))
    assert snapshot(path) == snapshot(tree)
