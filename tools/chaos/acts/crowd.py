"""A hundred or more stages and cleans at once on one DEST, some of them killed: each that succeeds has a whole copy."""

from __future__ import annotations

import time

from dlio.dataset.manifest import Manifest
from tools.chaos import oracle
from tools.chaos.process import Process
from tools.chaos.scene import Scene

NEEDS: tuple[str, ...] = ()


def play(scene: Scene) -> None:
    """Starts all of them within a few seconds, of some jobs."""
    sources = [scene.source("tfrecord"), scene.source("recordio")]
    kept = scene.do(scene.stage(sources[0], job="keeps"))
    stages: list[tuple[Process, Manifest]] = []
    for number in range(scene.choose.randint(60, 250)):
        if scene.choose.random() < 0.4:
            scene.clean(job=f"clean-{number % 10}")
        else:
            source = scene.choose.choice(sources)
            job = f"stage-{number % 10}" if scene.choose.random() < 0.5 else ""
            process = scene.stage(source, job=job)
            stages += [(process, source)] if job else []
        time.sleep(scene.choose.choice((0.0, 0.0, 0.01)))
        _kill(scene)
    scene.wait(*scene.processes)
    for process, source in [(kept, sources[0]), *stages]:
        scene.staged(process, source)
    for source in sources:
        oracle.check_copies(scene.dest, source)


def _kill(scene: Scene) -> None:
    """Now and then ends a random one, started early or late."""
    if scene.choose.random() < 0.15:
        victim: Process = scene.choose.choice(scene.processes)
        victim.strike(scene.choose, 0.01)
