"""stage is killed at random moments, by every strategy, alone and in parallel; the next run completes the copy."""

from __future__ import annotations

from dlio.stage import strategies
from tools.chaos import oracle
from tools.chaos.process import Process
from tools.chaos.scene import Scene

NEEDS: tuple[str, ...] = ()


def play(scene: Scene) -> None:
    """Kills some stages into one DEST, then lets one end."""
    source = scene.source()
    strategy = scene.choose.choice(["auto", *strategies.names()])
    for _ in range(scene.choose.randint(2, 6)):
        several = [_one(scene, strategy) for _ in range(scene.choose.randint(1, 3))]
        for process in several:
            process.strike(scene.choose, 1.5 * scene.world.stage_seconds)
        scene.wait(*several)
        oracle.check_copies(scene.dest, source)
    scene.staged(scene.do(scene.stage(source, "--strategy", strategy, job="last")), source)


def _one(scene: Scene, strategy: str) -> Process:
    job = scene.choose.choice(["", "1", "2"])
    return scene.stage(scene.sources[0], "--strategy", strategy, job=job)
