"""Source files change, shrink, vanish or become unreadable while they are staged: no wrong file gets its final name."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from dlio.dataset.manifest import NAME
from tools.chaos import oracle
from tools.chaos.scene import ALICE, Scene

NEEDS = ("root",)


def play(scene: Scene) -> None:
    """Changes a copy of the source during some stages; after it is restored, a stage succeeds."""
    good = scene.source()
    changing = scene.folder / "changing"
    for _ in range(scene.choose.randint(2, 5)):
        shutil.copytree(good.root, changing)
        user = scene.choose.choice((0, ALICE))
        several = [scene.stage(replace(good, root=changing), user=user) for _ in range(scene.choose.randint(1, 3))]
        for _ in range(scene.choose.randint(1, 4)):
            time.sleep(scene.choose.uniform(0, scene.world.stage_seconds / 3))
            _change(scene, changing)
        for process in several:
            scene.do(process, 0, 3, 4)
        oracle.check_copies(scene.dest, good)
        shutil.rmtree(changing)
    process = scene.do(scene.stage(good, job="last"))
    scene.staged(process, good)


def _change(scene: Scene, folder: Path) -> None:
    """Damages a random file in a random way; the manifest only becomes unreadable, vanishes or is cut off."""
    names = [path for path in sorted(folder.glob("*")) if path.is_file()]
    path = scene.choose.choice(names)
    ways: list[Callable[[], object]] = [
        lambda: path.unlink(),
        lambda: path.chmod(0),
        lambda: os.truncate(path, path.stat().st_size // 2),
    ]
    if path.name != NAME:
        data = scene.choose.randbytes(1000)
        ways += [lambda: _overwrite(path, data), lambda: path.open("ab").write(data), lambda: _becomes_folder(path)]
    scene.choose.choice(ways)()


def _overwrite(path: Path, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 3)
        file.write(data)


def _becomes_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()
