"""The source is slow, fails, flips bits, or vanishes: what is staged or packed is right, or dlio raises an error."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tools.chaos import oracle
from tools.chaos.patience import until
from tools.chaos.process import Process
from tools.chaos.scene import ALICE, Scene
from tools.chaos.violation import Violation

NEEDS = ("root", "mount namespaces", "FUSE (mfusepy, fuse3)")


def play(scene: Scene) -> None:
    """Stages from, packs from, and verifies such a source, then stages from it once it has recovered."""
    source = scene.source()
    view, fault = scene.folder / "view", scene.folder / "fault"
    server = serve(scene, source.root.parent, view, fault)
    packed = view / source.root.name
    is_struck = False
    for _ in range(scene.choose.randint(1, 3)):
        kind, chance = scene.choose.choice(("fails", "flips")), scene.choose.choice((0.0, 0.001, 0.01, 0.1, 1.0))
        fault.write_text(f"{kind} {chance}")
        several = [_reader(scene, packed, view) for _ in range(scene.choose.randint(1, 3))]
        if scene.choose.random() < 0.2:
            server.strike(scene.choose, 1.0)
            is_struck = True
        for process in several:
            scene.do(process, 0, 1, 3, 4, *((2,) if is_struck else ()))  # 2: no such folder
        oracle.check_copies(scene.dest, source)
    fault.unlink()
    good = source.root if is_struck else packed
    last = scene.do(scene.dlio("stage", good, scene.dest, "--allow-shared", job="last"))
    scene.staged(last, source)


def serve(scene: Scene, folder: Path, view: Path, fault: Path) -> Process:
    """Serves a folder at `view`, sometimes slowly; the file `fault` says how its reads go wrong."""
    view.mkdir()
    latency, bandwidth = scene.choose.choice((0, 1, 5)), scene.choose.choice((20, 60, 200))
    numbers = [scene.choose.randrange(1000), latency, bandwidth]
    command = [sys.executable, "-m", "tools.chaos.failing_source", folder, view, fault, *numbers]
    server = scene.serve([str(word) for word in command])
    if not until(lambda: os.path.ismount(view) or server.has_ended(), 30) or server.has_ended():
        raise Violation(f"the FUSE file system does not come{server.tail()}")
    return server


def _reader(scene: Scene, packed: Path, view: Path) -> Process:
    kind = scene.choose.choice(("stage", "stage", "stage", "verify", "pack"))
    if kind == "stage":
        return scene.dlio("stage", packed, scene.dest, "--quiet", user=scene.choose.choice((0, ALICE)))
    if kind == "verify":
        return scene.dlio("verify", packed, "--quiet")
    out = scene.folder / f"packed-{len(scene.processes)}"
    return scene.dlio("pack", view / "photos", out, "--format", "recordio", "--quiet")
