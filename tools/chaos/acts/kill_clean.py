"""clean is killed at random moments, while others stage: what a job uses stays whole."""

from __future__ import annotations

from tools.chaos import oracle
from tools.chaos.scene import Scene

NEEDS: tuple[str, ...] = ()


def play(scene: Scene) -> None:
    """Keeps one copy in use, and lets cleans and stages of the other be killed."""
    kept, other = scene.source("tfrecord"), scene.source("recordio")
    scene.do(scene.stage(kept, job="keeps"))
    (copy,) = oracle.copies(scene.dest, kept)
    for _ in range(scene.choose.randint(3, 8)):
        several = [scene.stage(other), *(scene.clean() for _ in range(scene.choose.randint(1, 3)))]
        if scene.choose.random() < 0.5:
            scene.wait(several[0])
        for process in several:
            process.strike(scene.choose, scene.world.stage_seconds)
        scene.wait(*several)
        oracle.check_whole(copy, kept)
        oracle.check_copies(scene.dest, other)
    scene.staged(scene.do(scene.stage(other, job="last")), other)
