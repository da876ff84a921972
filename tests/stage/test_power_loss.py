"""A loss of power: an ioctl shuts down a file system on a loop device, without writing unsynced data."""

from __future__ import annotations

import fcntl
import os
import shutil
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import dlio
from dlio.dataset.manifest import NAME, File, Manifest
from dlio.errors import StorageError
from dlio.stage.sources import MountedFolder
from tests.helpers.staging import MiB, assert_staged, damaged_files, write_dataset

SHUTDOWN, NO_LOG_FLUSH = 0x8004587D, 2


@pytest.fixture(autouse=True)
def nothing_is_synced() -> None:
    """Here everything is."""


class Disk:
    """A small disk whose power can be cut.

    Each time it is plugged in it is a copy of its image on its own device: a process with a mount namespace of its
    own, such as a node of another test's cluster, may still hold the last mount, and with it the file system cut off.
    """

    def __init__(self, kind: str, image: Path, mounted: Path) -> None:
        self.image, self.mounted, self.device = image, mounted, ""
        # Of two XFS with one UUID the second is refused.
        self.options = ["-o", "nouuid"] if kind == "xfs" else []

    def plug_in(self) -> None:
        """Mounts it, replaying its journal.

        Raises:
            subprocess.CalledProcessError: There is no loop device, or its file system cannot be mounted.
        """
        fresh = self.image.with_name(f"{self.image.name}+")
        subprocess.run(["cp", "--sparse=always", self.image, fresh], check=True)
        self.image = fresh
        attach = ["losetup", "--find", "--show", self.image]
        self.device = subprocess.run(attach, capture_output=True, text=True, check=True).stdout.strip()
        subprocess.run(["mount", *self.options, self.device, self.mounted], capture_output=True, check=True)

    def cut_power(self) -> None:
        """Loses what is not on the disk; every later call fails."""
        descriptor = os.open(self.mounted, os.O_RDONLY)
        try:
            fcntl.ioctl(descriptor, SHUTDOWN, struct.pack("I", NO_LOG_FLUSH))
        finally:
            os.close(descriptor)

    def unplug(self) -> None:
        """Unmounts it; its device is removed with its last user."""
        subprocess.run(["umount", self.mounted], check=True, capture_output=True)
        subprocess.run(["losetup", "--detach", self.device], check=True)


@pytest.fixture(params=["ext4", "xfs"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Disk]:
    make = shutil.which(f"mkfs.{request.param}")
    if make is None or os.geteuid() != 0 or subprocess.run(["losetup", "--find"], capture_output=True).returncode:
        pytest.skip(f"needs root, mkfs.{request.param} and loop devices")
    image = tmp_path / "image"
    with image.open("wb") as file:
        file.truncate(320 * MiB)
    subprocess.run([make, "-q", image], check=True, capture_output=True)
    found = Disk(request.param, image, tmp_path / "disk")
    found.mounted.mkdir()
    found.plug_in()
    yield found
    found.unplug()


def test_what_stage_returned_survives_a_power_loss(disk: Disk, dataset: Manifest) -> None:
    staged = dlio.stage(dataset, disk.mounted)
    disk.cut_power()
    disk.unplug()
    disk.plug_in()
    assert_staged(staged, dataset)
    assert dlio.stage(dataset, disk.mounted).root == staged.root


def test_power_lost_before_a_files_first_byte(disk: Disk, dataset: Manifest, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error of a stat is handled like any other."""
    read_range = MountedFolder.read_range

    def cut_and_read(self: MountedFolder, file: File, offset: int, target: memoryview) -> None:
        disk.cut_power()
        read_range(self, file, offset, target)

    monkeypatch.setattr(MountedFolder, "read_range", cut_and_read)
    with pytest.raises(StorageError, match=r"Input/output error|Read-only file system"):
        dlio.stage(dataset, disk.mounted)


@pytest.mark.parametrize("cut_after", [0, 3, 7, 11])
def test_power_lost_in_the_middle(disk: Disk, tmp_path: Path, cut_after: int) -> None:
    source = write_dataset(tmp_path / "source", [MiB] * 12)
    reported = 0

    def cut(_: int) -> None:
        nonlocal reported
        if reported == cut_after:
            disk.cut_power()
        reported += 1

    with pytest.raises(StorageError, match=r"Input/output error|Read-only file system"):
        dlio.stage(source, disk.mounted, strategy="replicate", report=cut)
    disk.unplug()
    disk.plug_in()
    folder = disk.mounted / "dlio" / source.content_id
    assert damaged_files(folder, source) == []
    assert not (folder / NAME).exists()
    assert_staged(dlio.stage(source, disk.mounted), source)
