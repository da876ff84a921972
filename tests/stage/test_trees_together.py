"""A folder that is staged as it is goes to several nodes by broadcast, each byte read once, and they agree on it."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from dlio.dataset.manifest import NAME
from dlio.stage.planning.plan import Plan
from dlio.stage.transfer.tree import anything
from tests.helpers.slow_source import bytes_read
from tests.helpers.trees import make_tree, snapshot
from tests.stage.launched import Cluster, needs_mpiexec

pytestmark = [pytest.mark.jobs, needs_mpiexec]


@pytest.mark.parametrize("transport", ["mpi", "folder"])
def test_three_nodes_read_each_byte_once_and_agree(
    tmp_path: Path, transport: str, slow_source: Callable[..., Path]
) -> None:
    tree = make_tree(tmp_path / "shared" / "env", small=600)
    mounted, cluster = slow_source(tree.parent), Cluster(tmp_path, transport)
    source = anything(mounted / "env").manifest
    reports = cluster.run(mounted / "env", 3)
    copies = [cluster.staged(source, node) for node in range(3)]
    assert [snapshot(copy.path) == snapshot(tree) for copy in copies] == [True] * 3
    listed = source.shards[0].num_bytes
    assert sum(report["source_bytes"] for report in reports.values()) == source.num_bytes
    assert bytes_read(mounted) == source.num_bytes - listed
    assert len({copy.digest for copy in copies}) == 1


def test_a_node_with_other_bytes_than_were_read_says_so(tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "shared" / "env", small=600)
    cluster, source = Cluster(tmp_path, "folder"), anything(tree).manifest
    cluster.run(tree, 2)
    plan, copy = Plan(source, 1, 2), cluster.staged(source, 1)
    name = next(file.name for number, file in enumerate(plan.listed) if not (file.digest or plan.owner(number)))
    (copy.root / NAME).unlink()
    journal = copy.root / ".dlio" / "digests"
    journal.write_text(re.sub(rf'(\["{name}","xxh3-128:)....', r"\g<1>0000", journal.read_text()))
    reports = cluster.run(tree, 2)
    assert re.search(f"{name} has the digest .*, and node 0 .*read it from the source", reports["node1.1"]["error"])
    assert not (copy.root / NAME).exists() and not (copy.root / name).exists()
    cluster.run(tree, 2)
    assert snapshot(cluster.staged(source, 1).path) == snapshot(tree)
