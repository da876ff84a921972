"""A stage that fails leaves no folders behind, and a dry run foretells that it would."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

import dlio
from dlio.cli import main
from dlio.dataset.manifest import NAME, Manifest
from dlio.errors import StorageError, UsageError
from dlio.io.filesystems import FileSystem
from dlio.stage import sources
from dlio.stage.choose import choice
from dlio.stage.run import preview, run
from tests.helpers.staging import node, write_dataset
from tests.helpers.users import open_to_all, unprivileged


@pytest.mark.parametrize(
    ("strategy", "limit"), [("auto", "size=16k"), ("replicate", "nr_inodes=20"), ("stripe", "size=16k")]
)
def test_a_dry_run_checks_the_room(tmp_path: Path, small_disk, capsys, strategy: str, limit: str) -> None:
    dataset, said = write_dataset(tmp_path / "source", [1000] * 30), set()
    disk: Path = small_disk(limit)
    for words in ([], ["--dry-run"]):
        assert main(["stage", str(dataset.root), str(disk), "--strategy", strategy, *words]) == 4
        said.add(re.sub("[0-9,]+ (bytes free|more files?)", "", capsys.readouterr().err))
        assert "are needed" in next(iter(said)) and len(said) == 1
        assert strategy == "stripe" or not list(disk.iterdir())


HARMS: dict[str, Callable[[Path], None]] = {
    "missing": Path.unlink,
    "shorter": partial(os.truncate, length=1),
    "not for us": partial(Path.chmod, mode=0),
    "in a folder": partial(Path.chmod, mode=0),
}


@pytest.mark.parametrize("harm", [*HARMS, "nowhere"])
def test_a_dry_run_fails_as_the_copy_would(dataset: Manifest, tmp_path: Path, harm: str) -> None:
    local, path = open_to_all(tmp_path), dataset.root / dataset.shards[3].files[0].name
    if harm == "nowhere":
        local.chmod(0o555)
        path = local / "dlio"
    else:
        HARMS[harm](path)
    if harm == "in a folder":
        (dataset.root / NAME).unlink()
    with unprivileged():
        with pytest.raises(StorageError, match=str(path)) as failed:
            run(dataset.root, local)
        with pytest.raises(StorageError) as foretold:
            preview(dataset.root, local)
    assert failed.value.text == foretold.value.text


def test_a_dry_run_checks_some_files_once_a_job(
    dataset: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A million of them would take minutes, on each rank."""
    monkeypatch.setattr(sources, "_LOOKED_AT", 1)
    names = [file.name for shard in dataset.shards for file in shard.files]
    for name in names[1:-1]:
        (dataset.root / name).unlink()
    preview(dataset.root, tmp_path / "local")
    (dataset.root / names[-1]).unlink()
    with pytest.raises(StorageError, match=names[-1]):
        preview(dataset.root, tmp_path / "local", topology=node(0, 2))
    preview(dataset.root, tmp_path / "local", topology=node(1, 2))


@pytest.mark.parametrize(("strategy", "root"), [("auto", "nfs4"), ("replicate", "nfs4"), ("auto", "tmpfs")])
def test_a_dry_run_where_the_nodes_disk_is_not_says_so(
    dataset: Manifest, tmp_path: Path, small_disk: Callable[[str], Path], strategy: str, root: str, monkeypatch
) -> None:
    """On a login node, whose own disk has no room either, or is one that other machines see."""
    open_to_all(tmp_path)
    monkeypatch.setattr(choice, "filesystem_of", lambda path: FileSystem(root, "/", 1, None))
    disk = small_disk("size=16k,mode=755")
    with unprivileged():
        seen = preview(dataset.root, disk / "job", strategy=strategy, topology=node(0, 4))
        with pytest.raises(UsageError if root == "nfs4" else StorageError):
            preview(dataset.root, disk, strategy="replicate")
    assert seen.note == f"{disk}/job does not exist here: its room and rights are not checked"
    assert not seen.file_system and not {"room", "fit"} & {*seen.decision.why.split()}


def test_what_another_job_has_staged_stays(dataset: Manifest, tmp_path: Path) -> None:
    staged = dlio.stage(dataset, tmp_path / "local")
    for path in dataset.root.glob("shard-*"):
        path.write_bytes(b"")
    staged.root.rename(tmp_path / "aside")
    other = tmp_path / "local/dlio" / ("0" * 32)
    other.mkdir()
    with pytest.raises(StorageError):
        dlio.stage(dataset, tmp_path / "local")
    assert other.exists()
