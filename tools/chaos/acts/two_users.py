"""Users stage to one DEST and clean it, each their own copies, and are killed: each gets a copy to rely on."""

from __future__ import annotations

from pathlib import Path

from tools.chaos import oracle
from tools.chaos.process import Process
from tools.chaos.scene import ALICE, BOB, Scene
from tools.chaos.violation import Violation

NEEDS = ("root",)


def play(scene: Scene) -> None:
    """Lets three users act at once, some times."""
    sources = [scene.source("tfrecord"), scene.source("recordio")]
    for _ in range(scene.choose.randint(2, 5)):
        several = [_one(scene) for _ in range(scene.choose.randint(2, 6))]
        for process in scene.choose.sample(several, len(several) // 3):
            process.strike(scene.choose, scene.world.stage_seconds)
        scene.wait(*several)
        for source in sources:
            oracle.check_copies(scene.dest, source)
    for user in (ALICE, BOB, 0):
        process = scene.do(scene.stage(sources[0], user=user, job=f"last-{user}"))
        scene.staged(process, sources[0])
        _check_owner(process, user)


def _one(scene: Scene) -> Process:
    user = scene.choose.choice((0, ALICE, BOB))
    job = scene.choose.choice(("", f"job-{user}"))
    if scene.choose.random() < 0.6:
        return scene.stage(scene.choose.choice(scene.sources), user=user, job=job)
    return scene.clean(*scene.choose.choice(([], ["--keep"])), user=user, job=job)


def _check_owner(process: Process, user: int) -> None:
    """Raises Violation if a user got a copy that another user than root can change."""
    copy = Path(process.said().splitlines()[-1])
    owners = {path.lstat().st_uid for path in (copy, copy.parent, *copy.rglob("*"))}
    if not owners <= {0, user}:
        raise Violation(f"user {user} should not rely on {copy}, which users {owners} have made")
