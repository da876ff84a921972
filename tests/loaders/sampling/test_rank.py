"""The cores of a rank: all that it may use, or its part of those that the ranks of a node share."""

from __future__ import annotations

import os

import pytest

from dlio.cluster.topology import Topology
from dlio.errors import UsageError
from dlio.io.limits import num_usable_cores
from dlio.loaders.sampling.rank import given_rank, num_cores_of_rank, rank_from_env

CORES = set(range(8))


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node of eight cores, each of which this process may use, and no launcher."""
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: CORES)
    monkeypatch.setenv("DLIO_LAUNCHER", "single")


def started(monkeypatch: pytest.MonkeyPatch, launcher: str, variables: dict[str, int]) -> None:
    monkeypatch.setenv("DLIO_LAUNCHER", launcher)
    for name, value in variables.items():
        monkeypatch.setenv(name, str(value))


def torchrun(monkeypatch: pytest.MonkeyPatch, ranks: int) -> None:
    shared = {"RANK": 0, "LOCAL_RANK": 0, "GROUP_RANK": 0, "GROUP_WORLD_SIZE": 1}
    started(monkeypatch, "torchrun", shared | {"WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks})


def openmpi(monkeypatch: pytest.MonkeyPatch, ranks: int) -> None:
    shared = {"OMPI_COMM_WORLD_RANK": 0, "OMPI_COMM_WORLD_LOCAL_RANK": 0}
    sizes = {"OMPI_COMM_WORLD_SIZE": ranks, "OMPI_COMM_WORLD_LOCAL_SIZE": ranks}
    started(monkeypatch, "openmpi", shared | sizes)


def test_a_process_of_its_own_has_all() -> None:
    assert num_cores_of_rank() == num_usable_cores()


@pytest.mark.parametrize("start", [torchrun, openmpi])
def test_ranks_that_all_keep_the_nodes_mask_divide_it(monkeypatch: pytest.MonkeyPatch, start) -> None:
    start(monkeypatch, 4)
    assert num_cores_of_rank() == max(1, num_usable_cores() // 4)


def test_each_rank_has_at_least_one(monkeypatch: pytest.MonkeyPatch) -> None:
    torchrun(monkeypatch, 20)
    assert num_cores_of_rank() == 1


def test_ranks_that_are_bound_to_cores_keep_these(monkeypatch: pytest.MonkeyPatch) -> None:
    openmpi(monkeypatch, 4)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {2, 3})
    assert num_cores_of_rank() == num_usable_cores() == 2


def test_torchruns_ranks_divide_their_part_of_a_node(monkeypatch: pytest.MonkeyPatch) -> None:
    torchrun(monkeypatch, 2)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {2, 3})
    assert num_cores_of_rank() == 1


def test_an_incomplete_launcher_is_not_an_error_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DLIO_LAUNCHER", "torchrun")
    assert num_cores_of_rank() == num_usable_cores()


@pytest.mark.parametrize(
    "job, expected",
    [
        (Topology(1, 4, 0, 2, 1, 2), 2),  # dealt to the nodes in turn
        (Topology(2, 4, 1, 2, 0, 2), 1),
        (Topology(3, 6, 1, 3, 0, 2), 1),
        (Topology(1, 4, 0, 2), 1),  # which node this is is not known
        (Topology(1, 4, None, None, 1, 2), 1),
        (Topology(4, 5, 1, 2, 1, 2), 4),  # nodes of different sizes
    ],
    ids=str,
)
def test_ranks_are_numbered_node_by_node(job: Topology, expected: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Topology, "from_env", lambda: job)
    assert rank_from_env() == (expected, job.world_size)


def test_a_rank_is_given_with_the_number_of_ranks_or_not_at_all() -> None:
    assert given_rank(0, 2) == (0, 2) and given_rank(None, None) is None
    for rank, world_size in ((0, None), (None, 2)):
        with pytest.raises(UsageError, match="give both or neither"):
            given_rank(rank, world_size)
