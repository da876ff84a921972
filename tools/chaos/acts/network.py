"""Nodes broadcast over a network that loses packets or is cut, and nodes die or hang: the others get all bytes."""

from __future__ import annotations

import signal
import time

from dlio.cluster import liveness
from dlio.dataset.manifest import Manifest
from dlio.stage.meeting.peer import LATE_SECONDS
from tools.chaos import oracle
from tools.chaos.network import Network
from tools.chaos.patience import until
from tools.chaos.process import Process
from tools.chaos.scene import LIMIT_SECONDS, Scene
from tools.chaos.violation import Violation

NEEDS = ("root", "network namespaces (iproute2)", "nftables")
_LOST_SECONDS = LATE_SECONDS + liveness.LOST_SECONDS  # within which dlio promises to stop waiting for a lost node
_LOADED_SECONDS = 15.0  # more, for a loaded machine


def play(scene: Scene) -> None:
    """Broadcasts under a fault, then, on a whole network, once more."""
    source, network = scene.source(), Network(scene, scene.choose.randint(2, 4))
    fault = scene.choose.choice((_loss, _flap, _cut, _death, _hang))
    nodes = _broadcast(scene, network, source)
    fault(scene, network, nodes)
    for process in nodes:
        scene.staged(process, source)
    network.mend()
    _check(scene, network, source)
    nodes = _broadcast(scene, network, source)
    for process in nodes:
        scene.staged(scene.do(process), source)
    _check(scene, network, source)


def _broadcast(scene: Scene, network: Network, source: Manifest) -> list[Process]:
    """Returns the processes, one for each node, which has its own disk."""
    nodes = []
    for number in range(network.size):
        words = ["stage", source.root, scene.folder / f"node{number}", "--strategy", "broadcast"]
        nodes.append(scene.dlio(*words, within=network.within(number), job="broadcast", **network.environ(number)))
    return nodes


def _check(scene: Scene, network: Network, source: Manifest) -> None:
    for number in range(network.size):
        oracle.check_copies(scene.folder / f"node{number}", source)


def _wait_for_blocks(scene: Scene, nodes: list[Process]) -> None:
    """Waits until the nodes pass on blocks, and a random moment more."""

    def has_begun() -> bool:
        found = scene.folder.glob("node*/dlio/*/.dlio/live/files/*")
        return any(path.is_file() for path in found) or any(process.has_ended() for process in nodes)

    if not until(has_begun, LIMIT_SECONDS):
        raise Violation(f"the broadcast does not begin{nodes[0].tail()}")
    time.sleep(scene.choose.uniform(0, 3))


def _all_end_well(scene: Scene, nodes: list[Process]) -> None:
    scene.wait(*nodes, limit=_LOST_SECONDS + _LOADED_SECONDS)
    for process in nodes:
        oracle.check_code(process, 0)


def _loss(scene: Scene, network: Network, nodes: list[Process]) -> None:
    """Lost packets are sent again by the network, or the bytes come from the source."""
    percent = scene.choose.choice((1, 2, 5, 10))
    network.lose(scene.choose.randrange(network.size), percent)
    scene.wait(*nodes)
    for process in nodes:
        oracle.check_code(process, 0)


def _flap(scene: Scene, network: Network, nodes: list[Process]) -> None:
    """A cable that is out for a moment."""
    number = scene.choose.randrange(network.size)
    _wait_for_blocks(scene, nodes)
    network.cut(number)
    time.sleep(scene.choose.uniform(0.1, 15))
    network.mend()
    _all_end_well(scene, nodes)


def _cut(scene: Scene, network: Network, nodes: list[Process]) -> None:
    """A cable that stays out."""
    _wait_for_blocks(scene, nodes)
    network.cut(scene.choose.randrange(network.size))
    _all_end_well(scene, nodes)


def _death(scene: Scene, network: Network, nodes: list[Process]) -> None:
    """A process that is killed."""
    victim = scene.choose.randrange(network.size)
    _wait_for_blocks(scene, nodes)
    nodes[victim].send(signal.SIGKILL)
    _all_end_well(scene, nodes[:victim] + nodes[victim + 1 :])


def _hang(scene: Scene, network: Network, nodes: list[Process]) -> None:
    """A process that stops, as on a node whose memory fails."""
    victim = scene.choose.randrange(network.size)
    _wait_for_blocks(scene, nodes)
    nodes[victim].send(signal.SIGSTOP)
    _all_end_well(scene, nodes[:victim] + nodes[victim + 1 :])
    nodes[victim].send(signal.SIGKILL)
    scene.wait(nodes[victim])
