"""An agent is killed, or held up, where it enters a system call that writes: it has marked nothing too early."""

from __future__ import annotations

import signal

from dlio.dataset.manifest import NAME
from tools.chaos import oracle, training
from tools.chaos.linux import STRACE
from tools.chaos.patience import until
from tools.chaos.scene import Scene

NEEDS = ("root", "strace")
_CALLS = ("pwrite64", "fallocate", "ftruncate", "rename", "fsync", "unlink")
_WITHIN = 10.0


def play(scene: Scene) -> None:
    """At any moment marked blocks are as in the source, and a rank reads all samples right."""
    source, (node,) = scene.source(), training.nodes_of(scene, 1)

    def look() -> None:
        for folder in node.live_folders(source):
            oracle.check_blocks(folder, source)

    def is_over() -> bool:
        look()
        return not node.has_agent(source) or any((copy / NAME).exists() for copy in oracle.copies(node.dest, source))

    try:
        for call in ("pwrite64", scene.choose.choice(_CALLS)):
            fault = f"{call}:signal=KILL:when={scene.choose.randint(1, 2)}"
            starter = training.start_agent(scene, node, source.root, "replicate", _injecting(call, fault))
            starter.sent.add(signal.SIGKILL)  # strace kills whichever of both makes the call
            scene.wait(starter)
            until(is_over, _WITHIN)
            node.kill_agent(source)
            look()
        slow = _injecting("pwrite64", "pwrite64:delay_enter=20000")
        scene.do(training.start_agent(scene, node, source.root, "replicate", slow))
        rank = training.start_rank(scene, node)
        until(lambda: is_over() or rank.has_ended(), _WITHIN)
        scene.do(rank)
    finally:
        training.end(scene, [node], source)


def _injecting(call: str, fault: str) -> list[str]:
    """Returns the words of the command that runs another whose system calls strace tampers with."""
    return [*STRACE, "-e", f"trace={call}", "-e", f"inject={fault}"]
