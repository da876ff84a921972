"""Clocks differ by years between processes, and claims and leases have any time: a copy that a session uses stays."""

from __future__ import annotations

import os
import time
from contextlib import suppress

from tools.chaos import oracle
from tools.chaos.linux import FAKETIME
from tools.chaos.patience import until
from tools.chaos.process import DLIO, Process
from tools.chaos.scene import Scene
from tools.chaos.violation import Violation

NEEDS = ("faketime",)
_STAGE_AND_STAY = '"$@" && echo is staged; exec sleep 600'
_OFFSETS = ("-20y", "-8d", "-1h", "-31", "+31", "+1h", "+8d", "+20y", "+1h x500", "-1h x0.01")


def play(scene: Scene) -> None:
    """Keeps one copy in use by a session, and lets processes with other clocks stage and clean."""
    kept, other = scene.source("tfrecord"), scene.source("recordio")
    user = scene.serve(["sh", "-c", _STAGE_AND_STAY, "sh", *DLIO, "stage", str(kept.root), str(scene.dest)])
    if not until(lambda: "is staged" in user.said() or user.has_ended(), 60):
        raise Violation(f"{user} does not stage{user.tail()}")
    (copy,) = oracle.copies(scene.dest, kept)
    for _ in range(scene.choose.randint(2, 4)):
        several = [_elsewhen(scene) for _ in range(scene.choose.randint(2, 4))]
        for _ in range(3):
            _touch(scene)
        if scene.choose.random() < 0.5:
            several[0].strike(scene.choose, 1.0)
        scene.wait(*several)
        oracle.check_whole(copy, kept)
        oracle.check_copies(scene.dest, other)
    user.end()
    scene.staged(scene.do(scene.stage(other, job="last")), other)


def _elsewhen(scene: Scene) -> Process:
    """Returns a stage or clean with another clock; its waits use the true clock."""
    environ = {"LD_PRELOAD": str(FAKETIME), "FAKETIME": scene.choose.choice(_OFFSETS)}
    environ |= {"FAKETIME_DONT_FAKE_MONOTONIC": "1", "NO_FAKE_STAT": "1"}
    job = scene.choose.choice(("", "1", "2"))
    if scene.choose.random() < 0.5:
        return scene.stage(scene.choose.choice(scene.sources), within=["env"], job=job, **environ)
    return scene.clean(within=["env"], job=job, **environ)


def _touch(scene: Scene) -> None:
    """Gives a claim or a lease another time, as a file system with a wrong clock does."""
    paths = [path for name in (".claims", ".leases") for path in (scene.dest / "dlio" / name).glob("*/*")]
    moment = time.time() + scene.choose.choice((-1e9, -3600, -31, 31, 3600, 1e9))
    with suppress(FileNotFoundError):
        for path in scene.choose.sample(sorted(paths), min(1, len(paths))):
            os.utime(path, (moment, moment))
    time.sleep(scene.choose.uniform(0, 0.1))
