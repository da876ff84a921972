"""Topology over recorded environments (tests/data/environments), and over invented clusters."""

from __future__ import annotations

import json
import pickle
from itertools import accumulate
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlio.cluster.launchers import LAUNCHERS
from dlio.cluster.topology import Topology
from dlio.errors import LauncherError

RECORDED = sorted((Path(__file__).parents[1] / "data" / "environments").glob("*.json"))


def recorded(path: Path) -> tuple[dict[str, str], dict[str, object]]:
    record = json.loads(path.read_text())
    return record["environ"], record["expected"]


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
def test_recorded_environment(path: Path) -> None:
    environ, expected = recorded(path)
    if "error" in expected:
        with pytest.raises(LauncherError) as caught:
            Topology.from_env(environ)
        assert str(expected["error"]) in str(caught.value)
    else:
        assert Topology.from_env(environ) == Topology(**expected)  # type: ignore[arg-type]


def test_at_least_thirty_environments_and_every_launcher() -> None:
    launchers = {str(expected.get("launcher")) for _, expected in map(recorded, RECORDED)}
    assert len(RECORDED) >= 30
    assert launchers >= {launcher.name for launcher in LAUNCHERS} - {"lightning"}  # which is only ever refused


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
def test_unrelated_and_empty_variables_change_nothing(path: Path) -> None:
    environ, expected = recorded(path)
    unset = {name: "" for launcher in LAUNCHERS for name in launcher.names()}
    if "error" not in expected:
        assert Topology.from_env({**unset, "EDITOR": "vi", **environ}) == Topology.from_env(environ)


nodes = st.lists(st.integers(1, 6), min_size=1, max_size=5)


@given(nodes)
def test_slurm_steps_of_any_shape(tasks: list[int]) -> None:
    first = [0, *accumulate(tasks)]
    for node, count in enumerate(tasks):
        for local in range(count):
            environ = {
                "SLURM_STEP_ID": "0",
                "SLURM_PROCID": str(first[node] + local),
                "SLURM_STEP_NUM_TASKS": str(sum(tasks)),
                "SLURM_STEP_NUM_NODES": str(len(tasks)),
                "SLURM_STEP_TASKS_PER_NODE": compressed(tasks),
                "SLURM_GTIDS": ",".join(str(first[node] + i) for i in range(count)),
                "SLURM_LOCALID": str(local),
                "SLURM_NODEID": str(node),
            }
            expected = Topology(first[node] + local, sum(tasks), local, count, node, len(tasks), "slurm")
            assert Topology.from_env(environ) == expected


def compressed(tasks: list[int]) -> str:
    """Writes [2, 2, 1] as SLURM does: `2(x2),1`."""
    runs: list[list[int]] = []
    for count in tasks:
        if runs and runs[-1][0] == count:
            runs[-1][1] += 1
        else:
            runs.append([count, 1])
    return ",".join(f"{count}(x{repeat})" if repeat > 1 else str(count) for count, repeat in runs)


@given(nodes, st.data())
def test_what_is_derived_is_true(tasks: list[int], data: st.DataObject) -> None:
    """If a launcher sets only some of the variables, the rest is either right or None, under round-robin placement."""
    placed = sorted((local, node) for node, count in enumerate(tasks) for local in range(count))
    rank = data.draw(st.integers(0, len(placed) - 1))
    local, node = placed[rank]
    truth = {"LOCAL_RANK": local, "LOCAL_WORLD_SIZE": tasks[node], "GROUP_RANK": node, "GROUP_WORLD_SIZE": len(tasks)}
    told = data.draw(st.sets(st.sampled_from(sorted(truth))))
    environ = {"RANK": str(rank), "WORLD_SIZE": str(len(placed)), "DLIO_LAUNCHER": "torchrun"}
    topology = Topology.from_env(environ | {name: str(truth[name]) for name in told})
    found = (topology.local_rank, topology.local_world_size, topology.node_rank, topology.num_nodes)
    for value, true in zip(found, truth.values(), strict=True):
        assert value in (None, true)


NAMES = {name for launcher in LAUNCHERS for name in launcher.names()}
LISTS = {"TF_CONFIG", "SLURM_STEP_TASKS_PER_NODE", "SLURM_GTIDS"}
VALUES = ["", "0", "1", "2", "8", "-1", "x", "2(x3)", "9" * 5000, "{}", "[]", "null", '{"cluster": {"worker": 3}}']


@given(st.dictionaries(st.sampled_from(sorted(NAMES | LISTS)), st.sampled_from(VALUES)))
def test_any_environment_gives_a_valid_topology_or_a_launcher_error(environ: dict[str, str]) -> None:
    try:
        topology = Topology.from_env(environ)
    except LauncherError:
        return
    assert 0 <= topology.rank < topology.world_size


@pytest.mark.parametrize(
    "numbers", [(2, 2), (-1, 2), (0, 0), (0, 2, 0, 3), (0, 2, 1, 1), (0, 2, 0, 1, 2, 2), (0, 4, 0, 3, 0, 3)]
)
def test_impossible_numbers_are_refused(numbers: tuple[int, ...]) -> None:
    with pytest.raises(LauncherError):
        Topology(*numbers)


def test_errors_name_the_variables_and_their_values() -> None:
    with pytest.raises(LauncherError, match=r"RANK=9 .*WORLD_SIZE=4.*DLIO_LAUNCHER"):
        Topology.from_env({"RANK": "9", "WORLD_SIZE": "4", "LOCAL_RANK": "1"})


def test_pickles_and_reads_the_process_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DLIO_LAUNCHER", "single")
    assert pickle.loads(pickle.dumps(Topology.from_env())) == Topology.single()
