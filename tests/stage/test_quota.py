"""Quotas: the system shows free space that the user may not use, so only a write that exceeds the quota fails."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import dlio
from dlio.errors import StorageError
from dlio.stage.upkeep.clean import clean
from tests.helpers.images import image as encoded
from tests.helpers.staging import MiB, assert_staged, write_dataset

LIMIT = 6 * MiB
Limit = Callable[[int], None]


def run(*command: str | Path) -> None:
    """Runs a command; skips the test where the kernel or the tools have no quotas of this kind."""
    if shutil.which(str(command[0])) is None:
        pytest.skip(f"needs {command[0]}")
    ran = subprocess.run(command, capture_output=True, text=True)
    if ran.returncode:
        pytest.skip(f"the kernel has no such quota: {command[0]}: {ran.stderr.strip().splitlines()[0]}")


def limit_btrfs(folder: Path, num_bytes: int) -> None:
    run("btrfs", "qgroup", "limit", str(num_bytes), folder)


def limit_ext4(folder: Path, num_bytes: int) -> None:
    run("setquota", "-P", "42", "0", str(num_bytes >> 10), "0", "0", folder.parent)


def limit_xfs(folder: Path, num_bytes: int) -> None:
    run("xfs_quota", "-x", "-c", f"limit -p bhard={num_bytes} 42", folder.parent)


#: How to make, mount and prepare each file system, and how to set the limit.
KINDS = {
    "btrfs": (
        ["mkfs.btrfs", "-q"],
        "rw",
        [["btrfs", "quota", "enable", "{disk}"], ["btrfs", "subvolume", "create", "{folder}"]],
        limit_btrfs,
    ),
    "ext4": (
        ["mkfs.ext4", "-q", "-O", "quota,project", "-E", "quotatype=prjquota"],
        "prjquota",
        [["mkdir", "{folder}"], ["chattr", "+P", "-p", "42", "{folder}"]],
        limit_ext4,
    ),
    "xfs": (
        ["mkfs.xfs", "-q"],
        "prjquota",
        [["mkdir", "{folder}"], ["xfs_quota", "-x", "-c", "project -s -p {folder} 42", "{disk}"]],
        limit_xfs,
    ),
}


@pytest.fixture(params=KINDS)
def quota(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Path, Limit]]:
    """A folder with a quota of 6 MiB on a file system with 300 MB free, and what changes the quota."""
    if os.geteuid() != 0:
        pytest.skip("needs root")
    make, option, prepare, limit = KINDS[request.param]
    image, disk = tmp_path / "image", tmp_path / "disk"
    with image.open("wb") as file:
        file.truncate(320 * MiB)
    disk.mkdir()
    if shutil.which(make[0]) is None:
        pytest.skip(f"needs {make[0]}")
    subprocess.run([*make, image], check=True)
    run("mount", "-o", f"loop,{option}", image, disk)
    try:
        for command in prepare:
            run(*(word.format(disk=disk, folder=disk / "folder") for word in command))
        limit(disk / "folder", LIMIT)
        yield disk / "folder", lambda num_bytes: limit(disk / "folder", num_bytes)
    finally:
        subprocess.run(["umount", disk], check=True)


def names(folder: Path) -> list[str]:
    """Returns the files below a folder, but claims."""
    return [str(path) for path in folder.rglob("*") if path.is_file() and ".claims" not in path.parts]


def test_a_copy_above_the_quota_leaves_nothing_and_says_so(quota, tmp_path):
    folder, limit = quota
    source = write_dataset(tmp_path / "in", [MiB] * 8)
    with pytest.raises(StorageError, match=r"shard-\d+.*Disk quota exceeded: remove .* the quota counts") as caught:
        dlio.stage(source.root, folder)
    assert caught.value.errno == errno.EDQUOT
    assert names(folder) == []
    limit(3 * LIMIT)
    assert_staged(dlio.stage(source.root, folder), source)


def test_clean_makes_room_in_a_folder_whose_quota_is_used_up(quota, tmp_path, caplog):
    folder, _ = quota
    source = write_dataset(tmp_path / "in", [MiB] * 4)
    staged = dlio.stage(source.root, folder)
    with pytest.raises(OSError, match="quota"):
        for number in range(100):
            (folder / f"filler{number}").write_bytes(os.urandom(100_000))
            os.sync()
    removed = clean(folder)
    if not removed:  # Btrfs needs room to rename
        assert f"cannot remove {staged.root}: Disk quota exceeded" in caplog.text
        (folder / "filler0").unlink()
        os.sync()
        removed = clean(folder)
    assert removed == [staged.root]
    for filler in folder.glob("filler*"):
        filler.unlink()
    os.sync()
    assert_staged(dlio.stage(source.root, folder), source)


def test_packing_above_the_quota_goes_on_where_it_ended(quota, tmp_path):
    folder, limit = quota
    (tmp_path / "in" / "class").mkdir(parents=True)
    for number in range(80):
        (tmp_path / "in" / "class" / f"{number}.jpg").write_bytes(encoded(number) + os.urandom(100_000))
    with pytest.raises(StorageError, match="Disk quota exceeded"):
        dlio.pack(tmp_path / "in", folder / "out", format="tfrecord", shard_size=MiB)
    assert not (folder / "out" / "manifest.jsonl").exists()
    limit(10 * LIMIT)
    dlio.pack(tmp_path / "in", folder / "out", format="tfrecord", shard_size=MiB)
    assert not dlio.verify(folder / "out")
