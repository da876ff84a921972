"""Containers stage to one DEST, each with its own process ids, and are killed: others continue after half a minute."""

from __future__ import annotations

import signal

from tools.chaos import oracle
from tools.chaos.process import Process
from tools.chaos.scene import Scene

NEEDS = ("root", "PID namespaces")
_CONTAINER = ("unshare", "-p", "-f", "--mount-proc", "--kill-child")


def play(scene: Scene) -> None:
    """Starts stages and cleans in containers and outside, and kills some."""
    source = scene.source()
    several = [_one(scene) for _ in range(scene.choose.randint(3, 8))]
    for process in scene.choose.sample(several, len(several) // 2):
        process.strike(scene.choose, 1.0 + 3 * scene.world.stage_seconds, [signal.SIGKILL])
    scene.wait(*several)
    oracle.check_copies(scene.dest, source)
    scene.staged(scene.do(scene.stage(source, within=_CONTAINER, job="last")), source)


def _one(scene: Scene) -> Process:
    within = scene.choose.choice(((), _CONTAINER, _CONTAINER))
    job = scene.choose.choice(("1", "2", "3"))
    if scene.choose.random() < 0.8:
        return scene.stage(scene.sources[0], within=within, job=job)
    return scene.clean(within=within, job=job)
