"""Reading what is staged: the copy on this node is found, and parts on several nodes make one epoch."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import dlio
from dlio.cluster.topology import Topology
from dlio.dataset.manifest import Manifest
from dlio.errors import StorageError, UsageError
from dlio.images import Resize
from dlio.loaders.dataset import PackedSamples
from dlio.loaders.sampling.order import Window, epoch_order, num_lanes
from tests.helpers.lazy import Lazy
from tests.loaders.photos import NUM_PHOTOS, numbers

DataLoader = Lazy("dlio.loaders.torch", "DataLoader")
PackedDataset = Lazy("dlio.loaders.torch", "PackedDataset")


def on_node(node: int, num_nodes: int) -> Topology:
    """Returns the topology of the only process on a node."""
    return Topology(node, num_nodes, 0, 1, node, num_nodes)


@pytest.fixture
def parts(packed: Manifest, tmp_path: Path) -> list[Manifest]:
    """The data set staged in parts to three nodes."""
    staged = [
        dlio.stage(
            packed.root, tmp_path / f"node {node}", strategy="partition", topology=on_node(node, 3), allow_shared=True
        )
        for node in range(3)
    ]
    assert all(num_lanes(manifest) == 3 for manifest in staged)
    return staged


@pytest.mark.parametrize("shuffle", [False, True, Window(2)], ids=str)
@pytest.mark.parametrize("ranks_per_node", [1, 2])
def test_ranks_read_what_their_node_holds_and_see_everything_together(
    parts: list[Manifest], shuffle: bool | Window, ranks_per_node: int
) -> None:
    seen: list[int] = []
    for rank in range(3 * ranks_per_node):
        dataset = PackedDataset(parts[rank // ranks_per_node], transform=Resize(16))
        loader = DataLoader(dataset, 2, shuffle, end="mask", rank=rank, world_size=3 * ranks_per_node)
        for images, _, valid in loader:
            seen += images[valid][:, 0, 0, 0].tolist()
        loader.close()
    assert sorted(seen) == list(range(NUM_PHOTOS))


def test_reading_another_nodes_part_says_which_node_has_it(parts: list[Manifest]) -> None:
    dataset = PackedDataset(parts[0], transform=Resize(16))
    loader = DataLoader(dataset, 2, rank=1, world_size=3)
    with pytest.raises(StorageError, match=r"shard-\d+ is on node 1: .* is not here; read it on that node"):
        list(loader)
    loader.close()
    first = next(number for number, shard in enumerate(parts[0].shards) if shard.nodes == (2,))
    with pytest.raises(StorageError, match=f"{parts[0].shards[first].name} is on node 2: "):
        dataset[parts[0].offsets[first]]
    with pytest.raises(UsageError, match="staged in 3 parts"):
        epoch_order(parts[0], lanes=2)


def test_the_copy_on_this_node_is_read(packed: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, local = tmp_path / "source", tmp_path / "local"
    shutil.copytree(packed.root, source)
    staged = dlio.stage(source, local, topology=Topology.single(), allow_shared=True)
    monkeypatch.setenv("DLIO_STAGED", str(local))
    samples = PackedSamples(source)
    assert samples.manifest.root == staged.root != source
    monkeypatch.delenv("DLIO_STAGED")
    assert PackedSamples(staged).manifest is staged


def test_a_part_for_other_nodes_is_left_alone(
    parts: list[Manifest], packed: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DLIO_STAGED", str(parts[0].root.parents[1]))
    dataset = PackedDataset(packed.root, transform=Resize(16))
    assert dataset.manifest.root == packed.root
    loader = DataLoader(dataset, 8)
    assert numbers(loader) == list(range(NUM_PHOTOS))
    loader.close()


def test_nodes_number_their_ranks_in_a_row(parts: list[Manifest], monkeypatch: pytest.MonkeyPatch) -> None:
    """Under `srun -m cyclic` rank 1 of 6 is the first of node 1; it must get the lane of node 1."""
    variables = {"SLURM_PROCID": 1, "SLURM_NTASKS": 6, "SLURM_LOCALID": 0, "SLURM_NODEID": 1, "SLURM_NNODES": 3}
    variables |= {"SLURM_STEP_ID": 0, "SLURM_JOB_ID": 1, "SLURM_STEP_NUM_TASKS": 6, "SLURM_STEP_NUM_NODES": 3}
    for name, value in (variables | {"SLURM_STEP_TASKS_PER_NODE": "2(x3)", "SLURM_TASKS_PER_NODE": "2(x3)"}).items():
        monkeypatch.setenv(name, str(value))
    loader = DataLoader(PackedDataset(parts[1], transform=Resize(16)), 2)
    assert loader.sampler is not None and len(numbers(loader)) > 0
    loader.close()
