"""Two nodes train while they stage from a source that gives wrong bytes for a while: none gets a final name."""

from __future__ import annotations

from dlio.dataset.manifest import Manifest
from tools.chaos import oracle, training
from tools.chaos.acts.failing_source import serve
from tools.chaos.patience import until
from tools.chaos.scene import Scene

NEEDS = ("root", "mount namespaces", "FUSE (mfusepy, fuse3)")
_WITHIN = 5.0  # seconds: the agents pass on and name files before the first rank reads
_CODES = (0, 3, 4)  # a file that is wrong twice ends a rank that waits for it


def play(scene: Scene) -> None:
    """Ranks read all samples right, or end by an error; what has a final name is right at any moment."""
    source = scene.source()
    view, fault = scene.folder / "view", scene.folder / "fault"
    serve(scene, source.root.parent, view, fault)
    nodes = training.nodes_of(scene, 2)
    strategy = scene.choose.choice(training.STRATEGIES)
    try:
        fault.write_text(f"flips {scene.choose.choice((0.02, 0.1, 0.5))}")
        for node in nodes:
            scene.do(training.start_agent(scene, node, view / source.root.name, strategy))
        until(lambda: all(_num_named(node, source) > 4 for node in nodes), _WITHIN)
        for node in nodes:
            oracle.check_copies(node.dest, source)
        ranks = [training.start_rank(scene, node) for node in nodes]
        until(lambda: all(rank.has_ended() for rank in ranks), scene.choose.uniform(0, _WITHIN))
        fault.unlink()
        for rank in ranks:
            scene.do(rank, *_CODES)
    finally:
        training.end(scene, nodes, source)


def _num_named(node: training.Node, source: Manifest) -> int:
    """Returns how many files have their final names."""
    return sum(len(list(copy.glob("shard*"))) for copy in oracle.copies(node.dest, source))
