"""verify and a loader read a staged copy, and are killed at random moments, while others clean: it does not change."""

from __future__ import annotations

import sys
from pathlib import Path

from tools.chaos import oracle
from tools.chaos.process import Process
from tools.chaos.scene import Scene

READ_ALL = Path(__file__).parents[1] / "read_all.py"
NEEDS: tuple[str, ...] = ()


def play(scene: Scene) -> None:
    """Kills some readers of one copy; one that is left alone reads every sample right."""
    source = scene.source()
    scene.do(scene.stage(source, job="reads"))
    (copy,) = oracle.copies(scene.dest, source)
    for _ in range(scene.choose.randint(2, 5)):
        killed = _reader(scene, copy)
        scene.clean(job="cleans")
        killed.strike(scene.choose, 1.0)
        scene.wait(killed)
        oracle.check_whole(copy, source)
    scene.do(scene.dlio("verify", copy, "--quiet"))
    scene.do(_loader(scene))


def _reader(scene: Scene, copy: Path) -> Process:
    if scene.choose.random() < 0.5:
        return scene.dlio("verify", copy, "--quiet", *scene.choose.choice(([], ["--decode"])))
    return _loader(scene)


def _loader(scene: Scene) -> Process:
    words = [sys.executable, str(READ_ALL), str(scene.sources[0].root), str(scene.choose.randint(1, 3))]
    scene.jobs.add("loads")
    return scene.run(words, DLIO_STAGED=str(scene.dest), SLURM_JOB_ID="loads")
