"""A damaged manifest of a staged copy is never used, and the next `stage` writes it again, without copying."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

import dlio
from dlio.dataset.manifest import NAME, Manifest
from dlio.errors import ManifestError
from dlio.stage.choose.choice import learn_id
from dlio.stage.client.resolve import opened
from dlio.stage.copies.live_folder import LiveFolder
from dlio.stage.run import StageSummary, run
from dlio.stage.upkeep.repair import manifest_at_rest
from tests.helpers.damage import flipped
from tests.helpers.manifests import as_version_1
from tests.helpers.staging import assert_staged, folder_of, node


@pytest.mark.parametrize("strategy", ["replicate", "partition", "stripe"])
@pytest.mark.parametrize("place", [9, 150, -3], ids=["version", "schema", "digest"])
def test_the_next_stage_writes_it_again(dataset: Manifest, tmp_path: Path, strategy: str, place: int) -> None:
    def stage() -> tuple[Manifest, StageSummary]:
        return run(dataset.root, tmp_path / "local", strategy=strategy, topology=node(0, 1))

    staged, _ = stage()
    path = staged.root / NAME
    content, shard = path.read_bytes(), (staged.root / "shard-00001.bin").stat().st_ino
    for bit in (0, 2):
        damaged = bytearray(content)
        damaged[place] ^= 1 << bit
        path.write_bytes(damaged)
        with pytest.raises(ManifestError, match=str(path)):
            Manifest.load(staged.root)
        again, summary = stage()
        assert (again.root, summary.copied_bytes) == (staged.root, 0)
        assert path.read_bytes() == content
    assert (staged.root / "shard-00001.bin").stat().st_ino == shard
    assert not list((staged.root / ".dlio").glob("aside/*"))


def test_a_loader_reads_the_source_instead_and_warns(
    dataset: Manifest, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    staged = dlio.stage(dataset.root, tmp_path / "local")
    copy = staged.root
    assert opened(dataset.root)[0].root == copy
    with flipped(copy / NAME, 8 * 40 + 1):
        assert opened(dataset.root)[0].root == dataset.root
        assert f"a staged copy is ignored: {copy / NAME}, line 1: " in caplog.text
        with pytest.raises(ManifestError, match="dlio verify --repair repairs a staged copy"):
            opened(copy)
        with pytest.raises(ManifestError):
            manifest_at_rest(folder_of(staged))


def test_a_copy_of_dlio_0_1_is_used_as_it_is(
    dataset: Manifest, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    staged, _ = run(dataset.root, tmp_path / "local")
    path = as_version_1(staged.root / NAME)
    content, inode = path.read_bytes(), path.stat().st_ino
    again, summary = run(dataset.root, tmp_path / "local")
    assert (again.root, summary.copied_bytes) == (staged.root, 0)
    assert (path.read_bytes(), path.stat().st_ino) == (content, inode)
    assert opened(dataset.root)[0].root == staged.root
    assert f"{path} has no digest line" in caplog.text


def test_a_data_set_of_dlio_0_1_is_found_staged(dataset: Manifest, tmp_path: Path) -> None:
    as_version_1(dataset.root / NAME)
    staged, _ = run(dataset.root, tmp_path / "local")
    assert_staged(staged, dataset)
    assert Manifest.load(staged.root).digest, "its copy is sealed"
    assert run(dataset.root, tmp_path / "local")[1].copied_bytes == 0
    manifest = Manifest.load(dataset.root)
    learn_id(manifest, tmp_path / "local")
    assert "content_id" not in vars(manifest) and manifest.content_id == staged.root.name


def test_a_damaged_manifest_of_a_copy_being_filled_is_written_again(
    dataset: Manifest, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    live = LiveFolder(folder_of(dlio.stage(dataset, tmp_path / "local")))
    live.make()
    assert live.manifest() is None and not caplog.records
    live.keep_manifest(dataset)
    content, inode = (live.path / NAME).read_bytes(), (live.path / NAME).stat().st_ino
    live.keep_manifest(dataset)
    assert (live.path / NAME).stat().st_ino == inode
    with flipped(live.path / NAME, 8 * 50):
        assert live.manifest() is None
        assert [record.levelno for record in caplog.records] == [logging.WARNING]
        live.keep_manifest(dataset)
        assert (live.path / NAME).read_bytes() == content
    found = live.manifest()
    assert found is not None and found.shards == dataset.shards
