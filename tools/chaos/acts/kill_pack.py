"""pack is killed at random moments, with several workers, and then continues to the same shards."""

from __future__ import annotations

from tools.chaos import oracle
from tools.chaos.scene import Scene
from tools.chaos.violation import Violation
from tools.chaos.world import FORMATS

NEEDS: tuple[str, ...] = ()


def play(scene: Scene) -> None:
    """Kills some packs into one folder, then lets one end."""
    container = scene.choose.choice(FORMATS)
    expected, out = scene.source(container), scene.folder / "packed"
    words = scene.world.pack_words(out, container)
    for _ in range(scene.choose.randint(1, 5)):
        process = scene.dlio(*words, "--workers", scene.choose.randint(1, 3))
        process.strike(scene.choose, scene.world.pack_seconds)
        scene.wait(process)
        oracle.check_names(out, expected)
    scene.do(scene.dlio(*words))
    oracle.check_whole(out, expected)
    scene.do(scene.dlio("verify", out, "--quiet"))
    names = {str(path.relative_to(out)) for path in out.rglob("*")}
    usual = {str(path.relative_to(expected.root)) for path in expected.root.rglob("*")}
    if names != usual:
        raise Violation(f"{out} should hold what an undisturbed pack writes; too many or few: {names ^ usual}")
