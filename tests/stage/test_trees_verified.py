"""What verify finds in a file or folder that was staged as it is, and what it says of paths that are not copies."""

from __future__ import annotations

import json
import os
import re
from datetime import UTC, datetime
from pathlib import Path

import pytest

import dlio
from dlio.cli import main
from dlio.dataset.manifest import NAME, Manifest
from dlio.errors import ManifestError
from dlio.io import world
from dlio.stage.copies.learned import Learned
from dlio.stage.run import run
from tests.helpers.lazy import Lazy
from tests.helpers.staging import interrupted_after
from tests.helpers.trees import make_tree, snapshot

PackedDataset = Lazy("dlio.loaders.torch", "PackedDataset")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return make_tree(tmp_path / "shared" / "env", small=3)


def test_a_changed_time_is_damage_that_is_mended(
    tree: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    staged = dlio.stage(tree, tmp_path / "local")
    path, second = staged.path / "small-001", 981_173_106
    os.utime(path, (second, second))
    expected = datetime.fromtimestamp(int((tree / "small-001").stat().st_mtime), UTC)
    line = f"dlio: damaged: {path}: was changed at 2001-02-03 04:05:06 UTC, expected {expected:%F %T} UTC"
    hint = "dlio: to copy the damaged files again from their source: dlio verify"
    assert main(["verify", str(staged.path)]) == 1
    assert capsys.readouterr().err.splitlines() == [line, f"{hint} {staged.path} --repair"]
    assert main(["verify", "--staged", str(tmp_path / "local")]) == 1
    assert capsys.readouterr().err.splitlines() == [line, f"{hint} --staged {tmp_path / 'local'} --repair"]
    assert main(["verify", str(staged.path), "--repair"]) == 0
    assert main(["verify", str(staged.path)]) == 0 and snapshot(staged.path) == snapshot(tree)


def test_what_was_added_is_named_and_is_no_damage(
    tree: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Python writes its bytecode into an environment."""
    staged = dlio.stage(tree, tmp_path / "local")
    (staged.path / "bin" / "__pycache__").mkdir()
    (staged.path / "bin" / "__pycache__" / "tool.pyc").touch()
    (staged.path / "sitecustomize.py").touch()
    assert main(["verify", str(staged.path)]) == 0
    said = capsys.readouterr()
    added = [line for line in said.err.splitlines() if "added: " in line]
    assert len(added) == 2 and "env/bin/__pycache__: " in added[0] and "env/sitecustomize.py: " in added[1]
    assert [line.split() for line in said.out.splitlines() if line.startswith("added")] == [["added", "2"]]
    assert main(["verify", str(staged.path), "--repair"]) == 0 and (staged.path / "sitecustomize.py").exists()
    capsys.readouterr()
    assert main(["verify", "--staged", str(tmp_path / "local")]) == 0
    said = capsys.readouterr()  # counted only: cron would send a mail for each
    assert said.err == "" and re.search(r": 13 files, [\d.]+ kB, whole, 2 added\n$", said.out)
    assert main(["verify", "--staged", str(tmp_path / "local"), "--json"]) == 0
    names = ["env/bin/__pycache__", "env/sitecustomize.py"]
    assert json.loads(capsys.readouterr().out)["copies"][0]["added"] == names


def test_a_folder_with_a_manifest_of_another_program_is_staged(tree: Path, tmp_path: Path) -> None:
    (tree / NAME).write_text('{"audio_filepath": "x", "duration": 1}\n')
    staged = dlio.stage(tree, tmp_path / "local")
    assert snapshot(staged.path) == snapshot(tree)
    assert Manifest.load(staged.path) == staged and dlio.verify(staged) == []
    assert dlio.stage(tree / "x", tmp_path / "local").path.read_bytes() == (tree / "x").read_bytes()
    with pytest.raises(ManifestError, match=f"{NAME} was not written by dlio; give the folder that dlio pack"):
        Manifest.load(tree)
    (tree / NAME).write_text('{"dlio": 1, "format"')
    with pytest.raises(ManifestError, match="line 1"):
        dlio.stage(tree, tmp_path / "local")


def test_what_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match="missing does not exist: give a data set, or any other file or folder"):
        dlio.stage(tmp_path / "missing", tmp_path / "local")
    (tmp_path / "lost").symlink_to("nowhere")
    with pytest.raises(ManifestError, match="lost is a link to a missing file"):
        dlio.stage(tmp_path / "lost", tmp_path / "local")


def test_a_copied_folder_is_no_data_set(tree: Path, tmp_path: Path) -> None:
    staged = dlio.stage(tree, tmp_path / "local")
    with pytest.raises(ManifestError, match="is the copy of a file or folder, and holds no samples"):
        PackedDataset(staged.path)


@pytest.mark.parametrize("since", ["nothing", "a boot", "bytes of another node", "a lost line"])
def test_a_file_that_was_cut_off_is_read_again_only_if_it_may_be_another(tmp_path: Path, since: str) -> None:
    """Its digest is not known before: what is here counts if it is surely what was read from the source."""
    (tmp_path / "env.sqsh").write_bytes(content := os.urandom(9 << 20))
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "env.sqsh", tmp_path / "local", strategy="replicate", listeners=interrupted_after(5 << 20))
    [journal] = (tmp_path / "local").rglob("digests")
    text = journal.read_text()
    changed = {
        "nothing": text,
        "a boot": text.replace(world.boot_id(), "earlier"),
        "bytes of another node": f'{text}["env.sqsh", "", true]\n',
        "a lost line": text.replace(world.boot_id(), ""),
    }
    journal.write_text(changed[since])
    staged, summary = run(tmp_path / "env.sqsh", tmp_path / "local", strategy="replicate")
    assert staged.path.read_bytes() == content
    assert (summary.source_bytes < len(content) - (3 << 20)) == (since == "nothing")


def test_bytes_of_another_node_are_noted_before_they_are_written(tmp_path: Path) -> None:
    (tmp_path / ".dlio").mkdir()
    first = Learned(tmp_path)
    for name in ("x", "y"):
        first.begins(name)
    first.receives("x")
    later = Learned(tmp_path)  # of the process that continues after a kill
    assert (later.is_as_read("x"), later.is_as_read("y"), later.is_as_read("z")) == (False, True, False)
    later.begins("x")
    assert Learned(tmp_path).is_as_read("x")
    first.close()
    later.close()
