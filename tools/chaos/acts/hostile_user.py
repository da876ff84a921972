"""One user plants links, pipes, odd files and forged copies at DEST, while root and another stage and clean there."""

from __future__ import annotations

from functools import partial

from tools.chaos.planting import plant
from tools.chaos.process import Process
from tools.chaos.scene import ALICE, BOB, Scene

NEEDS = ("root",)


def play(scene: Scene) -> None:
    """Plants before, between and during stages and cleans; these end with the right result or an error of dlio."""
    scene.distrusted = {BOB}
    scene.source()
    for _ in range(scene.choose.randint(3, 6)):
        _plant(scene)
        several = [_one(scene) for _ in range(scene.choose.randint(1, 3))]
        _plant(scene)
        scene.wait(*several)
        for process in several:
            if "dlio stage" in process.name:
                scene.staged(process, scene.sources[0])
        scene.check()


def _plant(scene: Scene) -> None:
    """Makes Bob plant something; staging at the same time takes part of a second."""
    seed = scene.choose.randrange(1 << 32)
    bob = scene.serve(partial(plant, scene.dest, scene.sources[0].content_id, scene.sentinels, seed), BOB)
    if bob.wait(30):
        raise RuntimeError(f"planting failed{bob.tail()}")


def _one(scene: Scene) -> Process:
    user = scene.choose.choice((0, ALICE))
    if scene.choose.random() < 0.5:
        return scene.stage(scene.sources[0], user=user, job=f"job-{user}")
    return scene.clean(user=user, job=scene.choose.choice(("", "of-another-job")))  # its own would end its lease
