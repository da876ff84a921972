"""A disk that loses or tears what it has acknowledged, or whose fsync fails: stage and pack report it, or repair it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import dlio
from dlio.dataset.manifest import NAME, Manifest
from dlio.errors import StorageError
from dlio.io import files
from dlio.stage.copies.folder import StagedFolder
from dlio.stage.copies.live_folder import LiveFolder
from dlio.stage.engine import writing
from dlio.stage.planning.job import Options
from dlio.stage.run import run
from dlio.stage.upkeep.scrub import scrub
from tests.helpers.live import store_of
from tests.helpers.lossy_disk import LossyDisk, lossy_disk
from tests.helpers.staging import MiB, assert_staged, damaged_files, write_dataset
from tests.helpers.trees import snapshot

pytestmark = pytest.mark.timeout(60)


@pytest.fixture(autouse=True)
def nothing_is_synced() -> None:
    """Here everything is."""


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[LossyDisk]:
    with lossy_disk(tmp_path / "lossy") as plugged_in:
        yield plugged_in


@pytest.fixture
def source(tmp_path: Path) -> Manifest:
    return write_dataset(tmp_path / "source", [MiB, MiB // 2, 5000])


def stage(source: Manifest, disk: LossyDisk) -> Manifest:
    return dlio.stage(source, disk.mounted, strategy="replicate", allow_shared=True)


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("fsync 9000", "Input/output error"),
        ("lose 300000", "loses data"),
        ("tear 300000", "loses data"),
        ("zero 300000", "lost bytes at its end"),
    ],
)
def test_what_a_disk_loses_is_reported_and_staged_again(
    disk: LossyDisk, source: Manifest, fault: str, said: str
) -> None:
    folder = disk.mounted / "dlio" / source.content_id
    disk.fault(fault)
    with pytest.raises(StorageError, match=said) as caught:
        stage(source, disk)
    assert "shard-0000" in str(caught.value)
    disk.fault("")
    assert damaged_files(folder, source) == []
    assert not (folder / NAME).exists()
    stage(source, disk)
    disk.cut_power()
    assert_staged(stage(source, disk), source)


def test_a_file_whose_sync_failed_is_emptied(disk: LossyDisk) -> None:
    disk.fault("fsync 9000")
    with (disk.mounted / "file").open("wb", buffering=0) as file:
        file.write(os.urandom(MiB))
        with pytest.raises(OSError, match="Input/output error"):
            files.sync_written(file.fileno())
    assert (disk.mounted / "file").stat().st_size == 0


def test_a_file_whose_fsync_failed_is_fetched_again(disk: LossyDisk, source: Manifest) -> None:
    """Also by the next process, if this one is killed then."""
    (file,) = source.shards[0].files
    live = LiveFolder(StagedFolder(disk.mounted, source.content_id))
    live.staged.path.mkdir(parents=True)
    live.make()
    first = store_of(live, [file])
    first.missing(0, [(0, 0)])  # for a reader
    first.write(0, 0, memoryview((source.root / file.name).read_bytes()))
    disk.fault("fsync 9000")
    with pytest.raises(StorageError, match="Input/output error"):
        first.finish(0)
    for each in (first, store_of(live, [file])):
        assert each.missing(0, [(0, MiB)]) == [(0, MiB)]


@pytest.mark.parametrize("fault", ["fsync 9000", "lose 9000", "tear 9000"])
def test_a_pack_on_a_disk_that_loses_bytes_ends_and_resumes(disk: LossyDisk, photos: Path, fault: str) -> None:
    out = disk.mounted / "out"
    disk.fault(fault)
    with pytest.raises(StorageError, match=r"shard-000000\.tfrecord.*(Input/output error|loses data)"):
        dlio.pack(photos, out, workers=1)
    assert not (out / NAME).exists()
    disk.fault("")
    dlio.pack(photos, out, workers=1)
    disk.cut_power()
    packed = Manifest.load(out)
    assert packed.num_samples == 36 and damaged_files(out, packed) == []


def test_a_manifest_that_was_lost_in_part_is_not_published(disk: LossyDisk) -> None:
    disk.fault("lose 300")
    with pytest.raises(StorageError, match="loses data"):
        files.publish_bytes(disk.mounted / NAME, bytes(1000))
    assert list(disk.mounted.iterdir()) == []


def test_a_scrub_finds_and_mends_blocks_torn_within_a_file(
    disk: LossyDisk, source: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only reading everything again shows them; see docs/security.md."""
    disk.fault("zero 300000")
    monkeypatch.setattr(writing, "check_last", lambda *_: None)  # else it is found at once
    staged = stage(source, disk)
    disk.fault("")
    assert damaged_files(staged.root, source)
    (found,) = scrub(disk.mounted, mend=True)
    assert sorted(found.damaged) == sorted(found.repaired) == ["shard-00000.bin", "shard-00001.bin"]
    assert_staged(staged, source)


def test_a_copy_that_a_lying_disk_has_lost_is_staged_again(disk: LossyDisk, source: Manifest) -> None:
    disk.fault("lies")
    stage(source, disk)
    disk.cut_power()
    assert_staged(stage(source, disk), source)


@pytest.mark.parametrize(("fault", "said"), [("fsync 20000", "Input/output error"), ("lose 20000", "loses data")])
def test_what_a_disk_loses_of_small_files_is_reported_and_copied_again(
    disk: LossyDisk, tmp_path: Path, fault: str, said: str
) -> None:
    (tree := tmp_path / "shared" / "env").mkdir(parents=True)
    for number in range(3):
        (tree / str(number)).write_bytes(os.urandom(20_000 * number))
    shared = Options(allow_shared=True)
    disk.fault(fault)
    with pytest.raises(StorageError, match=said):
        run(tree, disk.mounted, strategy="replicate", options=shared)
    assert not list(disk.mounted.glob(f"dlio/*/{NAME}"))
    disk.fault("")
    staged, summary = run(tree, disk.mounted, strategy="replicate", options=shared)
    assert summary.source_bytes == 60_000 and snapshot(staged.path) == snapshot(tree)
