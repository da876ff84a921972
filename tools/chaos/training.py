"""A job whose nodes train while they stage: the agent of each node fills its copy, and a rank reads the samples."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from dlio.dataset.manifest import Manifest
from dlio.stage.copies.folder import StagedFolder
from dlio.stage.copies.live_folder import LiveFolder, end_agents
from tools.chaos import oracle
from tools.chaos.acts.kill_readers import READ_ALL
from tools.chaos.patience import until
from tools.chaos.process import Process
from tools.chaos.scene import Scene
from tools.chaos.violation import Violation

STRATEGIES = ("replicate", "broadcast", "partition")
_JOB = "live"


@dataclass(frozen=True, slots=True)
class Node:
    """A node of the job: the folder of its copy, and its processes' environment."""

    dest: Path
    environ: dict[str, str]

    def live_folders(self, source: Manifest) -> list[LiveFolder]:
        """Returns the live folders of its copies."""
        return [LiveFolder(StagedFolder(self.dest, path.name)) for path in oracle.copies(self.dest, source)]

    def has_agent(self, source: Manifest) -> bool:
        """Returns whether an agent runs."""
        return any(folder.agent() for folder in self.live_folders(source))

    def kill_agent(self, source: Manifest) -> None:
        """Kills the agent, if one runs."""
        for folder in self.live_folders(source):
            if agent := folder.agent():
                with suppress(ProcessLookupError):
                    os.kill(agent.owner.pid, signal.SIGKILL)
        if not until(lambda: not self.has_agent(source), 10):
            raise Violation(f"the killed agent of {self.dest} lives")


def nodes_of(scene: Scene, size: int) -> list[Node]:
    """Returns the nodes of a job, each with its own folder; the first has the scene's."""
    meet = scene.folder / "meet"
    meet.mkdir(mode=0o700)
    scene.jobs.add(_JOB)
    return [_node(scene, rank, size, meet) for rank in range(size)]


def _node(scene: Scene, rank: int, size: int, meet: Path) -> Node:
    dest = scene.folder / f"node{rank}" if rank else scene.dest
    dest.mkdir(mode=0o700, exist_ok=True)
    numbers = {"RANK": rank, "WORLD_SIZE": size, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1, "GROUP_RANK": rank,
               "GROUP_WORLD_SIZE": size, "TORCHELASTIC_RUN_ID": "chaos", "SLURM_JOB_ID": _JOB}  # fmt: skip
    places = {"DLIO_MEET": meet, "DLIO_INTERFACE": "127.0.0.1", "DLIO_LAUNCHER": "torchrun", "DLIO_STAGED": dest}
    return Node(dest, {name: str(value) for name, value in (numbers | places).items()})


def start_agent(scene: Scene, node: Node, packed: Path, strategy: str, within: Sequence[str] = ()) -> Process:
    """Returns the process that starts a node's agent; `within` are the words of the command that runs it, if any."""
    words = ["stage", packed, node.dest, "--background", "--strategy", strategy, "--allow-shared", "--quiet"]
    return scene.dlio(*words, within=within or ("env",), **node.environ)


def start_rank(scene: Scene, node: Node) -> Process:
    """Returns the process of a rank that reads all samples of the scene's first source for an epoch or two."""
    epochs = str(scene.choose.randint(1, 2))
    return scene.run([sys.executable, str(READ_ALL), str(scene.sources[0].root), epochs], **node.environ)


def end(scene: Scene, nodes: Sequence[Node], source: Manifest) -> None:
    """Ends the agents, and checks what they leave.

    Raises:
        Violation: a file is wrong under its final name, or `clean` leaves something.
    """
    end_agents(folder for node in nodes for folder in node.live_folders(source))
    for node in nodes:
        oracle.check_copies(node.dest, source)
        if node.dest != scene.dest:  # which `Scene.finish` cleans
            scene.do(scene.dlio("clean", node.dest, "--job", _JOB))
            oracle.check_nothing_left(node.dest, [])
