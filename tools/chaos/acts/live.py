"""Two nodes train while they stage: an agent is killed, a node is lost, or the source fails for a while."""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from dlio.dataset.manifest import Manifest
from dlio.stage.cache.folder import StagedFolder
from dlio.stage.live.folder import LiveFolder, end_agents
from tools.chaos import oracle
from tools.chaos.acts.failing_source import serve
from tools.chaos.acts.kill_readers import READ_ALL
from tools.chaos.patience import until
from tools.chaos.process import Process
from tools.chaos.scene import Scene
from tools.chaos.violation import Violation

NEEDS = ("root", "mount namespaces", "FUSE (mfusepy, fuse3)")
_JOB = "live"
_WITHIN = 1.5  # seconds, in which the accident comes


@dataclass(frozen=True, slots=True)
class _Node:
    dest: Path
    environ: dict[str, str]

    def agents(self, source: Manifest) -> list[LiveFolder]:
        """Returns the live folders of its copies."""
        return [LiveFolder(StagedFolder(self.dest, path.name)) for path in oracle.copies(self.dest, source)]


def play(scene: Scene) -> None:
    """Ranks that are left read all samples right, or end by an error where the source failed."""
    source = scene.source()
    view, fault = scene.folder / "view", scene.folder / "fault"
    serve(scene, source.root.parent, view, fault)
    nodes = [_node(scene, rank) for rank in range(2)]
    accident = scene.choose.choice(("agent", "node", "source"))
    strategy = scene.choose.choice(("replicate", "broadcast", "partition"))
    try:
        ranks = [_train(scene, node, view / source.root.name, strategy) for node in nodes]
        time.sleep(scene.choose.uniform(0, _WITHIN))
        if accident == "source":
            fault.write_text(scene.choose.choice(("0.1", "1.0")))
            time.sleep(scene.choose.uniform(0, 2 * _WITHIN))
            fault.unlink()
        elif accident == "node":
            ranks[1].send(signal.SIGKILL)
        if accident != "source":
            _kill_agents(nodes[1], source)
        for rank in ranks:
            scene.do(rank, 0, *((4,) if accident == "source" else ()), *(-number for number in rank.sent))
    finally:
        end_agents(folder for node in nodes for folder in node.agents(source))
    oracle.check_copies(nodes[1].dest, source)
    scene.do(scene.dlio("clean", nodes[1].dest, "--job", _JOB))
    oracle.check_nothing_left(nodes[1].dest, [])


def _node(scene: Scene, rank: int) -> _Node:
    """Returns a node of the job, with a folder of its own; the first has the scene's."""
    dest, meet = scene.folder / "other" if rank else scene.dest, scene.folder / "meet"
    for folder in (dest, meet):
        folder.mkdir(mode=0o700, exist_ok=True)
    numbers = {"RANK": rank, "WORLD_SIZE": 2, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1, "GROUP_RANK": rank,
               "GROUP_WORLD_SIZE": 2, "TORCHELASTIC_RUN_ID": "chaos", "SLURM_JOB_ID": _JOB}  # fmt: skip
    places = {"DLIO_MEET": meet, "DLIO_INTERFACE": "127.0.0.1", "DLIO_LAUNCHER": "torchrun", "DLIO_STAGED": dest}
    scene.jobs.add(_JOB)
    return _Node(dest, {name: str(value) for name, value in (numbers | places).items()})


def _train(scene: Scene, node: _Node, packed: Path, strategy: str) -> Process:
    """Starts the node's agent, then a rank that reads what comes."""
    words = ["stage", str(packed), str(node.dest), "--background", "--strategy", strategy, "--allow-shared", "--quiet"]
    scene.do(scene.run([sys.executable, "-m", "dlio", *words], **node.environ))
    epochs = str(scene.choose.randint(1, 2))
    return scene.run([sys.executable, str(READ_ALL), str(scene.sources[0].root), epochs], **node.environ)


def _kill_agents(node: _Node, source: Manifest) -> None:
    for folder in node.agents(source):
        if agent := folder.agent():
            with suppress(ProcessLookupError):
                os.kill(agent.owner.pid, signal.SIGKILL)
            if not until(lambda agent=agent: agent.owner.is_alive() is False, 10):  # type: ignore[misc]
                raise Violation(f"the killed agent of {node.dest} lives")
