"""A stage that fails leaves no folders behind, and a dry run foretells that it would."""

from __future__ import annotations

from pathlib import Path

import pytest

import dlio
from dlio.cli import main
from dlio.dataset.manifest import Manifest
from dlio.errors import StorageError


@pytest.mark.parametrize("strategy", ["auto", "replicate"])
def test_a_dry_run_checks_the_room(dataset: Manifest, small_disk, capsys, strategy: str) -> None:
    disk: Path = small_disk("size=16k")
    for words in ([], ["--dry-run"]):
        assert main(["stage", str(dataset.root), str(disk), "--strategy", strategy, *words]) == 4
        assert "are needed" in capsys.readouterr().err
        assert not list(disk.iterdir())


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
