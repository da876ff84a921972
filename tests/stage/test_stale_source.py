"""A file server whose clients see old sizes, times and contents for a while: a copy is never a mixture."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

import dlio
from dlio.dataset.manifest import NAME, Manifest
from dlio.errors import DlioError, StorageError
from dlio.stage.sources import MountedFolder
from tests.helpers.forked import Forked
from tests.helpers.fuse import served
from tests.helpers.staging import MiB, assert_staged, write_dataset

pytestmark = pytest.mark.timeout(60)
FOR_EVER = 3600.0  # longer than the test


def replaced(folder: Path, new: Path) -> None:
    shutil.rmtree(folder)
    shutil.copytree(new, folder)


@pytest.mark.parametrize("size", [MiB, MiB + 1], ids=["same-sizes", "other-sizes"])
@pytest.mark.parametrize(
    "is_old", [lambda name: name == NAME, lambda name: name != NAME, lambda _: True], ids=["manifest", "shards", "all"]
)
def test_a_stale_view_of_a_data_set_is_staged_whole_or_refused(
    tmp_path: Path, is_old: Callable[[str], bool], size: int
) -> None:
    old = write_dataset(tmp_path / "old", [MiB] * 2, seed=1)
    new = write_dataset(tmp_path / "new", [size] * 2, seed=2)
    shutil.copytree(old.root, tmp_path / "data")
    mounted = tmp_path / "mounted"
    with served("passthrough", mounted, tmp_path / "data", FOR_EVER):
        for name in filter(is_old, [path.name for path in mounted.iterdir()]):
            (mounted / name).read_bytes()
            (mounted / name).stat()
        replaced(tmp_path / "data", new.root)
        with suppress(DlioError):
            staged = dlio.stage(mounted, tmp_path / "local")
            assert_staged(staged, old if staged.content_id == old.content_id else new)
    with served("passthrough", mounted, tmp_path / "data", 0):
        assert_staged(dlio.stage(mounted, tmp_path / "local"), new)


def test_stages_to_one_folder_end_though_each_sees_the_other_late(tmp_path: Path) -> None:
    """As two nodes with their own attribute caches, so that claims and leases are seen seconds late."""
    source = write_dataset(tmp_path / "source", [MiB] * 6)
    (tmp_path / "shared").mkdir()

    def stage(mounted: Path) -> None:
        assert_staged(Manifest.load(dlio.stage(source, mounted, strategy="replicate", allow_shared=True).root), source)

    nodes = [tmp_path / "node0", tmp_path / "node1"]
    with (
        served("passthrough", nodes[0], tmp_path / "shared", 1),
        served("passthrough", nodes[1], tmp_path / "shared", 1),
    ):
        running = [Forked(lambda mounted=mounted: stage(mounted)) for mounted in nodes]
        assert [process.wait() for process in running] == [0, 0]


def test_a_file_that_was_written_to_once_can_be_read_later(tmp_path: Path) -> None:
    """Found by the simulator: an agent refused such a file for as long as it lived, and read it again and again."""
    manifest = write_dataset(tmp_path / "data", [MiB])
    file, target = manifest.shards[0].files[0], memoryview(bytearray(1000))
    source = MountedFolder(manifest)
    source.read_range(file, 0, target)
    (manifest.root / file.name).touch()
    with pytest.raises(StorageError, match="changed while it was copied"):
        source.read_range(file, 1000, target)
    source.read_range(file, 1000, target)
    assert target == (manifest.root / file.name).read_bytes()[1000:2000]
