"""The disk is too small, or fills up during a run: space is freed, and with enough space every run succeeds."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from tools.chaos import oracle
from tools.chaos.linux import mount_tmpfs
from tools.chaos.scene import ALICE, Scene
from tools.chaos.violation import Violation
from tools.chaos.world import FORMATS

NEEDS = ("root", "mount namespaces")
_SPARE_BYTES = 4 << 20  # for folders, markers, leases


def play(scene: Scene) -> None:
    """Stages or packs onto a small disk, then onto the same one made larger."""
    disk = scene.folder / "disk"
    disk.mkdir()
    scene.choose.choice((_stage, _pack))(scene, disk)


def _stage(scene: Scene, disk: Path) -> None:
    source, user = scene.source(), scene.choose.choice((0, ALICE))
    size, inodes = int(source.num_bytes * scene.choose.uniform(0.1, 1.9)), scene.choose.choice((40, 5000))
    mount_tmpfs(disk, size, f"nr_inodes={inodes}")
    for _ in range(scene.choose.randint(1, 3)):
        process = scene.dlio("stage", source.root, disk, "--quiet", user=user)
        _hog(scene, disk, source.num_bytes)
        scene.do(process, 0, 4)
        if process.code == 4:
            _check_given_back(disk)
        oracle.check_copies(disk, source)
    mount_tmpfs(disk, 2 * source.num_bytes + _SPARE_BYTES, "nr_inodes=5000")
    scene.staged(scene.do(scene.dlio("stage", source.root, disk, user=user, job="last")), source)


def _hog(scene: Scene, disk: Path, num_bytes: int) -> None:
    """Fills the disk under the process that writes, and frees it again during the run or only after it."""
    hog = disk / "hog"
    try:
        with hog.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, int(num_bytes * scene.choose.random()))
    except OSError:
        pass  # full already
    if scene.choose.random() < 0.5:
        scene.processes[-1].wait(120)
    hog.unlink(missing_ok=True)


def _check_given_back(disk: Path) -> None:
    """Raises Violation if a stage that found no room keeps some."""
    held = sum(path.lstat().st_blocks * 512 for path in disk.rglob("*") if path.is_file())
    if held > _SPARE_BYTES:
        raise Violation(f"a stage without room should give it back, and keeps {held} bytes at {disk}")


def _pack(scene: Scene, disk: Path) -> None:
    container = scene.choose.choice(FORMATS)
    expected = scene.source(container)
    mount_tmpfs(disk, int(expected.num_bytes * scene.choose.uniform(0.05, 0.9)))
    words = scene.world.pack_words(disk / "packed", container)
    scene.do(scene.dlio(*words, "--workers", 2), 4)
    oracle.check_names(disk / "packed", expected)
    mount_tmpfs(disk, 2 * expected.num_bytes + _SPARE_BYTES)
    scene.do(scene.dlio(*words))
    oracle.check_whole(disk / "packed", expected)
    shutil.rmtree(disk / "packed")
