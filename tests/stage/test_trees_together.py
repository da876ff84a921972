"""A folder that is staged as it is goes to several nodes by broadcast, each byte read once, and they agree on it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

import dlio
from dlio.dataset.manifest import NAME
from dlio.errors import DigestError
from dlio.stage.planning.plan import Plan
from dlio.stage.transfer.tree import anything
from tests.helpers.slow_source import bytes_read
from tests.helpers.staging import node
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


def test_what_an_earlier_run_received_is_compared_with_the_source(tmp_path: Path) -> None:
    """Its nodes are not there any more to tell what they read."""
    tree = make_tree(tmp_path / "shared" / "env", small=600)
    cluster, source = Cluster(tmp_path, "folder"), anything(tree).manifest
    cluster.run(tree, 2)
    copy = cluster.staged(source, 1)
    journal = copy.root / ".dlio" / "digests"
    received = [json.loads(line)[0] for line in journal.read_text().splitlines() if line.endswith("true]")]
    owned = [
        file.name for number, file in enumerate(Plan(source, 1, 2).listed) if Plan(source, 1, 2).owner(number) == 0
    ]
    assert received and set(received) <= set(owned)
    (copy.root / NAME).unlink()
    name = received[0]
    (copy.root / name).write_bytes(bytes((copy.root / name).stat().st_size))
    journal.write_text(re.sub(r"(xxh3-128:)....(.*true)", r"\g<1>0000\2", journal.read_text(), count=1))
    with pytest.raises(DigestError, match=r"has the digest xxh3-128:0000.*, and the source, has"):
        dlio.stage(tree, tmp_path / "local" / "node1", strategy="replicate", topology=node(0, 1))
    assert not (copy.root / NAME).exists() and not (copy.root / name).exists()
    dlio.stage(tree, tmp_path / "local" / "node1", strategy="replicate", topology=node(0, 1))
    assert snapshot(copy.path) == snapshot(tree)
