"""`dlio verify --seal`: manifests of dlio 0.1 get a digest line once the whole data set has been verified."""

from __future__ import annotations

import json
import stat
from dataclasses import replace
from pathlib import Path

import pytest

import dlio
from dlio.cli import main
from dlio.dataset.manifest import NAME, Manifest
from dlio.errors import StorageError
from dlio.io import files
from dlio.locking.claim import exclusively
from dlio.pack.inspect.sealing import seal
from dlio.pack.resume import CLAIMS
from dlio.pack.write import ASIDE
from tests.helpers.manifests import as_version_1
from tests.helpers.staging import flip


@pytest.fixture
def old(tmp_path: Path, photos: Path) -> Path:
    """A data set as dlio 0.1 packed it."""
    packed = dlio.pack(photos, tmp_path / "old", num_shards=2, engine="serial").root
    as_version_1(packed / NAME)
    return packed


def test_a_whole_data_set_is_sealed_as_it_would_be_packed(
    tmp_path: Path, photos: Path, old: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    new = dlio.pack(photos, tmp_path / "new", num_shards=2, engine="serial").root
    (old / NAME).chmod(0o640)
    names = sorted(path.name for path in old.iterdir())
    assert main(["verify", str(old), "--seal", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["sealed"] is True
    assert (old / NAME).read_bytes() == (new / NAME).read_bytes()
    assert stat.S_IMODE((old / NAME).stat().st_mode) == 0o640
    assert sorted(path.name for path in old.iterdir()) == names
    before = (old / NAME).stat()
    assert main(["verify", str(old), "--seal", "--quiet"]) == 0
    assert (old / NAME).stat().st_ino == before.st_ino, "there was nothing to do"


@pytest.mark.parametrize("name", ["shard-000001.tfrecord", "shard-000000.samples.npz"])
def test_a_damaged_data_set_is_not_sealed(old: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    flip(old / name)
    before = (old / NAME).read_bytes()
    assert main(["verify", str(old), "--seal", "--json"]) == 1
    printed = capsys.readouterr()
    assert json.loads(printed.out)["sealed"] is False
    assert name in printed.err
    assert (old / NAME).read_bytes() == before


def test_what_changed_since_it_was_verified_is_not_sealed(old: Path) -> None:
    verified = Manifest.load(old)
    replace(verified, shards=verified.shards[::-1]).save(old)
    before = (old / NAME).read_bytes()
    with pytest.raises(StorageError, match="was changed while it was verified: run the same command again"):
        seal(verified)
    assert (old / NAME).read_bytes() == before


def test_nothing_is_sealed_while_a_pack_runs(old: Path) -> None:
    (old / ASIDE).mkdir()
    with exclusively(old / ASIDE / CLAIMS, "dlio pack"), pytest.raises(StorageError, match="is under way, by process"):
        seal(Manifest.load(old))
    assert Manifest.load(old).digest == ""


def test_a_failure_leaves_the_old_manifest_alone(old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before, names = (old / NAME).read_bytes(), sorted(path.name for path in old.iterdir())

    def full(*_: object) -> None:
        raise StorageError(28, "no space left")

    monkeypatch.setattr(files, "publish", full)
    with pytest.raises(StorageError, match="no space left"):
        seal(Manifest.load(old))
    assert (old / NAME).read_bytes() == before
    assert sorted(path.name for path in old.iterdir()) == names


def test_adopted_shards_are_sealed(tmp_path: Path, photos: Path) -> None:
    packed = dlio.pack(photos, tmp_path / "packed", num_shards=1, engine="serial").root
    (tmp_path / "theirs").mkdir()
    (packed / "shard-000000.tfrecord").rename(tmp_path / "theirs" / "a.tfrecord")
    made = dlio.index(tmp_path / "theirs", format="tfrecord", workers=1)
    as_version_1(made.root / NAME)
    assert main(["verify", str(made.root), "--seal", "--quiet"]) == 0
    assert Manifest.load(made.root).digest
    assert {path.name for path in made.root.iterdir()} == {NAME, "a.tfrecord", ".dlio-index"}


def test_a_staged_copy_is_sealed_and_stays_one(tmp_path: Path, old: Path) -> None:
    copy = dlio.stage(old, tmp_path / "local").root
    sealed, mode = (copy / NAME).read_bytes(), (copy / NAME).stat().st_mode
    as_version_1(copy / NAME)
    assert main(["verify", str(copy), "--seal", "--quiet"]) == 0
    assert (copy / NAME).read_bytes() == sealed
    assert (copy / NAME).stat().st_mode == mode
    assert dlio.stage(old, tmp_path / "local").root == copy


@pytest.mark.parametrize("words", [["--staged"], ["DATASET", "--repair"], ["https://127.0.0.1:1/set"]])
def test_what_is_no_data_set_in_a_folder_is_not_sealed(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", *words, "--seal"]) == 2
    assert "--seal is for one data set in a folder" in capsys.readouterr().err
