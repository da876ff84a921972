"""Placement: every shard on the requested number of nodes, evenly."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import dlio
from dlio.cluster.topology import Topology
from dlio.dataset.manifest import Manifest
from dlio.errors import UsageError
from dlio.stage.planning.homes import assign
from dlio.stage.planning.plan import partitioned
from tests.helpers.staging import damaged_files, node


@given(st.lists(st.integers(0, 1000), max_size=40), st.integers(1, 9), st.data())
def test_the_nodes_hold_about_the_same_bytes(sizes: list[int], num_nodes: int, data: st.DataObject) -> None:
    copies = data.draw(st.integers(1, num_nodes))
    assigned = assign(sizes, num_nodes, copies)
    assert all(len(set(nodes)) == copies and set(nodes) <= set(range(num_nodes)) for nodes in assigned)
    held = [0] * num_nodes
    for size, nodes in zip(sizes, assigned, strict=True):
        held[nodes[0]] += size
    assert max(held) <= sum(sizes) / num_nodes + max(sizes, default=0)
    assert assigned == assign(sizes, num_nodes, copies)


@pytest.mark.parametrize("copies", [0, 4])
def test_impossible_numbers_of_copies_are_refused(copies: int) -> None:
    with pytest.raises(UsageError, match="on 3 nodes: give at least 1 copy"):
        assign([1, 2], 3, copies)


@pytest.mark.parametrize("copies", [1, 2])
def test_partition_leaves_the_whole_data_set_on_the_nodes_together(
    dataset: Manifest, tmp_path: Path, copies: int
) -> None:
    parts = [
        dlio.stage(dataset, tmp_path / f"node{rank}", strategy="partition", copies=copies, topology=node(rank, 3))
        for rank in range(3)
    ]
    assert parts[0] == parts[1] == parts[2] == Manifest.load(parts[0].root) == partitioned(dataset, 3, copies)
    assert parts[0].content_id == dataset.content_id
    for rank, part in enumerate(parts):
        names = {file.name for shard in part.shards if rank in shard.nodes for file in shard.files}
        assert {path.name for path in part.root.glob("*.bin")} == names
        assert damaged_files(part.root, part) == []
    for shard in parts[0].shards:
        assert sum((part.root / shard.files[0].name).exists() for part in parts) == copies == len(shard.nodes)


def test_a_part_is_not_taken_for_the_whole(dataset: Manifest, tmp_path: Path) -> None:
    part = dlio.stage(dataset, tmp_path, strategy="partition", topology=node(0, 3))
    whole = dlio.stage(dataset, tmp_path, topology=node(0, 3))
    assert part.root != whole.root
    assert {path.name for path in whole.root.glob("*.bin")} == {shard.files[0].name for shard in dataset.shards}


def test_partition_needs_numbered_nodes(dataset: Manifest, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="launcher openmpi"):
        dlio.stage(dataset, tmp_path, strategy="partition", topology=Topology(1, 4, 1, 2, launcher="openmpi"))
