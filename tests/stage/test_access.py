"""Who may read a staged copy: never more users than may read its source, unless the user says so."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
from pathlib import Path

import pytest

import dlio
from dlio import cli
from dlio.dataset.manifest import NAME, Manifest
from dlio.errors import UsageError
from dlio.rights.access import FolderAccess
from tests.helpers.staging import MiB, assert_staged, write_dataset
from tests.helpers.users import ALICE, BOB, as_user, open_to_all
from tests.stage.launched import Cluster, needs_mpiexec

TEAM = 3001
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="gives files to other users")


def modes(folder: Path) -> dict[str, int]:
    """Returns the modes of a copy's folder, its manifest, and all its files together."""
    files = {stat.S_IMODE(path.stat().st_mode) for path in folder.glob("shard-*")}
    assert len(files) == 1
    return {"folder": stat.S_IMODE(folder.stat().st_mode), "files": files.pop()} | {
        name: stat.S_IMODE((folder / name).stat().st_mode) for name in (NAME, ".dlio/copy.json")
    }


def private(dataset: Manifest, *, folder: int, files: int) -> Manifest:
    """Sets the modes of a data set."""
    for path in dataset.root.iterdir():
        path.chmod(files)
    dataset.root.chmod(folder)
    return dataset


@pytest.fixture
def dataset(tmp_path: Path) -> Manifest:
    """Shards of some sizes: an empty one, some that are written at once, and one that comes in pieces."""
    return write_dataset(tmp_path / "source", [0, 1, 70_000, 7, MiB + 1])


@pytest.fixture(autouse=True)
def _reachable(tmp_path: Path) -> None:
    open_to_all(tmp_path)


@pytest.mark.parametrize(
    ("folder", "files", "staged_folder", "staged_files"),
    [
        (0o700, 0o600, 0o700, 0o600),
        (0o700, 0o644, 0o700, 0o600),
        (0o755, 0o600, 0o700, 0o600),
        (0o755, 0o644, 0o755, 0o644),
        (0o755, 0o444, 0o755, 0o644),
        (0o777, 0o666, 0o755, 0o644),
        (0o750, 0o640, 0o750, 0o640),
        (0o750, 0o644, 0o750, 0o640),
        (0o711, 0o644, 0o711, 0o644),
    ],
)
@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_the_umask_does_not_change_a_copys_access(
    dataset: Manifest, tmp_path: Path, folder: int, files: int, staged_folder: int, staged_files: int, umask: int
) -> None:
    private(dataset, folder=folder, files=files)
    before = os.umask(umask)
    try:
        staged = dlio.stage(dataset, tmp_path / "tmp")
    finally:
        os.umask(before)
    expected = {"folder": staged_folder, "files": staged_files, NAME: staged_files, ".dlio/copy.json": staged_files}
    assert modes(staged.root) == expected
    assert_staged(staged, dataset)


def test_a_folder_around_the_source_counts(dataset: Manifest, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    source = Manifest.load(shutil.move(dataset.root, home / "source"))
    assert modes(dlio.stage(source, tmp_path / "tmp").root)["files"] == 0o600


def test_a_link_to_the_source_does_not_hide_its_folders(dataset: Manifest, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    shutil.move(dataset.root, home / "source")
    (tmp_path / "link").symlink_to(home / "source")
    assert modes(dlio.stage(tmp_path / "link", tmp_path / "tmp").root)["files"] == 0o600


def test_one_private_file_of_an_open_data_set_stays_private(dataset: Manifest, tmp_path: Path) -> None:
    (dataset.root / "shard-00002.bin").chmod(0o600)
    staged = dlio.stage(dataset, tmp_path / "tmp").root
    assert stat.S_IMODE((staged / "shard-00002.bin").stat().st_mode) == 0o600
    assert stat.S_IMODE((staged / "shard-00003.bin").stat().st_mode) == 0o644


@as_root
def test_the_group_may_read_copies_that_root_or_members_stage(dataset: Manifest, tmp_path: Path) -> None:
    private(dataset, folder=0o750, files=0o640)
    for path in (dataset.root, *dataset.root.iterdir()):
        os.chown(path, ALICE, TEAM)

    def stage() -> None:
        dlio.stage(dataset, tmp_path / "tmp")

    assert as_user(ALICE, stage) == 0, "Alice is not in the group"
    own = tmp_path / "tmp" / "dlio" / dataset.content_id
    assert (own.stat().st_gid, modes(own)["files"]) == (ALICE, 0o600)
    stage()
    staged = tmp_path / "tmp" / "dlio-u0" / "dlio" / dataset.content_id
    found = {(path.stat().st_gid, stat.S_IMODE(path.stat().st_mode)) for path in staged.glob("shard-*")}
    assert found == {(TEAM, 0o640)}
    assert (staged.stat().st_gid, stat.S_IMODE(staged.stat().st_mode)) == (TEAM, 0o750)


@as_root
def test_a_private_copy_of_root_does_not_stop_another_user(dataset: Manifest, tmp_path: Path) -> None:
    def stage() -> None:
        assert_staged(dlio.stage(dataset, tmp_path / "tmp"), dataset)

    os.umask(0o022)
    dlio.stage(dataset, tmp_path / "tmp", mode=0o600)
    assert as_user(BOB, stage) == 0


def test_the_user_may_open_new_and_existing_copies_to_others(dataset: Manifest, tmp_path: Path) -> None:
    private(dataset, folder=0o700, files=0o600)
    command = ["stage", str(dataset.root), str(tmp_path / "tmp"), "--quiet"]
    staged = tmp_path / "tmp" / "dlio" / dataset.content_id
    for arguments, expected in ((["--mode", "640"], 0o640), ([], 0o640), (["--mode", "644"], 0o644)):
        assert cli.main([*command, *arguments]) == 0
        assert modes(staged)["files"] == expected
        assert modes(staged)["folder"] == expected | 0o100 | (expected & 0o044) >> 2


@pytest.mark.parametrize("mode", [0o666, 0o755, 0o044, 0o200, 0o1644])
def test_a_mode_that_lets_others_write_is_refused(dataset: Manifest, tmp_path: Path, mode: int) -> None:
    with pytest.raises(UsageError, match="can be 600, 640 or 644"):
        dlio.stage(dataset, tmp_path / "tmp", mode=mode)


def test_an_access_control_list_shuts_out_all_others(tmp_path: Path) -> None:
    if shutil.which("setfacl") is None:
        pytest.skip("setfacl is not installed")
    (tmp_path / "file").touch(mode=0o644)
    if subprocess.run(["setfacl", "-m", f"u:{BOB}:r,g::-", str(tmp_path / "file")], check=False).returncode:
        pytest.skip("this file system knows no access control lists")
    assert FolderAccess().access(tmp_path / "file").mode == 0o600


@needs_mpiexec
def test_a_broadcast_keeps_the_modes_on_every_node(dataset: Manifest, any_cluster: Cluster) -> None:
    private(dataset, folder=0o750, files=0o640)
    (dataset.root / "shard-00004.bin").chmod(0o600)
    any_cluster.run(dataset.root, 2)
    for folder in (any_cluster.staged(dataset, node).root for node in range(2)):
        for number, expected in ((2, 0o640), (4, 0o600)):
            assert stat.S_IMODE((folder / f"shard-{number:05d}.bin").stat().st_mode) == expected
        assert stat.S_IMODE(folder.stat().st_mode) == 0o750


def test_nobody_else_enters_a_copy_before_it_is_complete(dataset: Manifest, tmp_path: Path) -> None:
    seen: set[int] = set()

    def look(_: int) -> None:
        seen.update(stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "node/dlio").glob("[0-9a-f]*"))

    staged = dlio.stage(dataset, tmp_path / "node", strategy="replicate", report=look)
    assert seen == {0o700} and stat.S_IMODE(staged.root.stat().st_mode) != 0o700
