"""Two nodes train while they stage: an agent is killed, a node is lost, or the source fails for a while."""

from __future__ import annotations

import signal
import time

from tools.chaos import training
from tools.chaos.acts.failing_source import serve
from tools.chaos.scene import Scene

NEEDS = ("root", "mount namespaces", "FUSE (mfusepy, fuse3)")
_WITHIN = 1.5  # seconds within which the fault comes


def play(scene: Scene) -> None:
    """The remaining ranks read all samples right, or end with an error if the source failed."""
    source = scene.source()
    view, fault = scene.folder / "view", scene.folder / "fault"
    serve(scene, source.root.parent, view, fault)
    nodes = training.nodes_of(scene, 2)
    accident = scene.choose.choice(("agent", "node", "source"))
    strategy = scene.choose.choice(training.STRATEGIES)
    try:
        for node in nodes:
            scene.do(training.start_agent(scene, node, view / source.root.name, strategy))
        ranks = [training.start_rank(scene, node) for node in nodes]
        time.sleep(scene.choose.uniform(0, _WITHIN))
        if accident == "source":
            fault.write_text(scene.choose.choice(("fails 0.1", "fails 1.0")))
            time.sleep(scene.choose.uniform(0, 2 * _WITHIN))
            fault.unlink()
        elif accident == "node":
            ranks[1].send(signal.SIGKILL)
        if accident != "source":
            nodes[1].kill_agent(source)
        for rank in ranks:
            scene.do(rank, 0, *((4,) if accident == "source" else ()), *(-number for number in rank.sent))
    finally:
        training.end(scene, nodes, source)
