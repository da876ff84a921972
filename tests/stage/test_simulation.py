"""The simulator: the cost model's times for even loads, fair shares; stragglers, failures and queues."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dlio
from dlio.dataset.manifest import Manifest
from dlio.errors import UsageError
from dlio.stage import simulate
from dlio.stage.choose import machine_file
from dlio.stage.planning.cost import Machine, Volume
from dlio.stage.planning.flows import shared
from dlio.stage.planning.homes import PIECE_BYTES
from dlio.stage.planning.simulation import timeline
from dlio.stage.strategies import cost_of, names
from tests.helpers.staging import one_file_each

GB = 10**9
EVEN = one_file_each(np.full(448, GB // 10))
MACHINE = Machine(16, 10**13, source=5e9, client=1e9)
RATES = st.floats(1e8, 1e12)


@settings(max_examples=30)
@given(
    st.integers(1, 64),
    st.builds(Machine, st.just(1), st.just(1), source=RATES, client=RATES, network=RATES, local=RATES),
)
def test_where_all_is_even_the_simulator_gives_the_times_of_the_cost_model(per_node: int, machine: Machine) -> None:
    machine = replace(machine, num_nodes=7)
    sizes = one_file_each(np.full(7 * per_node, GB))
    for name in names():
        predicted = cost_of(name, Volume(7 * per_node * GB, 7 * per_node, GB), machine).seconds
        start = 7 * PIECE_BYTES * (6 / min(machine.source, 7 * machine.client) + 1 / machine.network)
        found = simulate(sizes, machine, name).seconds
        assert abs(found - predicted) <= 1e-6 * predicted + (name == "broadcast") * (start + 0.005 * predicted), name


@pytest.mark.parametrize(
    ("shards", "source", "idle"),
    [
        (400, 10e9, 2.432),  # the first shards of all nodes are read in 2.56 s, and each node takes one in 0.128 s
        (400, 100e9, 0.128),
        (400, 1e9, 99 * 0.128),  # all is read in 102.4 s: then each takes the last shards of 99 nodes
        (200, 1e9, 0.2),  # they are divided, so all wait for pieces of 4 MiB
    ],
)
def test_nodes_of_a_broadcast_wait_for_the_first_shards_of_the_others(shards: int, source: float, idle: float) -> None:
    machine = Machine(100, 10**13, source=source, client=25e9, network=1e12, local=2e9)
    found = simulate(one_file_each(np.full(shards, 256_000_000)), machine, "broadcast").seconds
    begun = 6 * 100 * PIECE_BYTES / source  # the blocks that are read first
    assert found == pytest.approx(shards * 256e6 / min(source, 2e9) + idle, abs=begun + 0.01)


def test_a_node_of_a_broadcast_passes_on_a_small_file_as_soon_as_it_is_read() -> None:
    machine = Machine(2, 10**13, source=20e6, client=1e9, network=2e6, local=1e9)
    found = simulate(one_file_each(np.full(48, 10**6)), machine, "broadcast").seconds
    read_first = 2 * 6 * 1e6 / 20e6  # a file by each of 6 threads, while nothing is sent
    assert found == pytest.approx(24e6 / 2e6 + read_first, abs=0.01)


@given(st.lists(st.floats(0, 100), min_size=1, max_size=12), st.floats(1, 200), st.integers(0, 5), st.floats(1, 100))
def test_shares_are_fair(wanted: list[float], source: float, switch_nodes: int, uplink: float) -> None:
    got = shared(np.array(wanted), source, switch_nodes, uplink)
    assert (got <= np.array(wanted) + 1e-9).all() and got.sum() <= source * (1 + 1e-9)
    groups = [got[at : at + switch_nodes] for at in range(0, len(got), switch_nodes)] if switch_nodes else []
    assert all(group.sum() <= uplink * (1 + 1e-9) for group in groups)
    for node, rate in enumerate(got):  # one that gets less than it wants is among the first at what limits it
        limits = [got] if got.sum() > source * (1 - 1e-9) else []
        limits += (
            [group for group in groups[node // switch_nodes :][:1] if group.sum() > uplink * (1 - 1e-9)]
            if groups
            else []
        )
        assert rate > wanted[node] - 1e-6 or any(rate > limit.max() - 1e-6 for limit in limits)


def test_every_byte_is_moved_once_and_the_busiest_part_is_named() -> None:
    found = simulate(EVEN, MACHINE, "broadcast")
    assert found.num_bytes == {
        "source": EVEN.files.sum(),
        "network": 15 * EVEN.files.sum(),
        "local storage": 16 * EVEN.files.sum(),
    }
    assert (found.busiest, found.opens, found.failures) == ("local storage", 448, 0)
    assert simulate(EVEN, replace(MACHINE, source=1e9), "broadcast").busiest == "source"


def test_stragglers_and_failures_are_the_same_for_the_same_seed() -> None:
    uneven = replace(MACHINE, source=1e12, slow_share=0.2, slow_factor=0.5, failures=2.0)
    found = simulate(EVEN, uneven, "replicate", seed=3)
    assert found == simulate(EVEN, uneven, "replicate", seed=3) != simulate(EVEN, uneven, "replicate", seed=4)
    slow = simulate(EVEN, replace(uneven, failures=0), "replicate", seed=3)
    assert slow.seconds == pytest.approx(2 * slow.percentiles[50])
    passed_on = simulate(EVEN, replace(uneven, failures=0), "broadcast", seed=3)
    assert passed_on.seconds == pytest.approx(2 * passed_on.percentiles[50], rel=0.01)  # a slow disk keeps nobody up
    with pytest.raises(UsageError, match="staging does not end"):
        simulate(EVEN, replace(uneven, failures=1e4), "broadcast")


def test_a_failed_node_begins_again() -> None:
    alone = replace(MACHINE, num_nodes=1, failures=20.0, restart_seconds=10.0)
    runs = [simulate(EVEN, alone, "replicate", seed=seed) for seed in range(50)]
    failed = [run for run in runs if run.failures == 1]
    assert failed and all(54.8 < run.seconds < 10 + 2 * 44.8 for run in failed)
    assert all(run.seconds == pytest.approx(44.8) for run in runs if not run.failures)


@pytest.mark.parametrize(
    ("change", "seconds"),
    [
        ({"opens": 10.0}, 44.8),
        ({"request_seconds": 0.2}, 11.5),  # 12 threads, each 4 MiB in 0.204 s: 247 MB/s a node
        ({"switch_nodes": 8, "uplink": 1e9}, 22.4),
        ({"num_targets": 193}, 44.8 / 5 * 2),  # of 193 targets 192 readers keep half busy
        ({"source": 1e12, "client": 1e12, "cache_bytes": 2 * GB, "local": 0.1e9}, 28.0),
    ],
)
def test_parts_of_the_machine_limit_a_partition(change: dict[str, float], seconds: float) -> None:
    assert simulate(EVEN, replace(MACHINE, **change), "partition").seconds == pytest.approx(seconds, rel=0.03)  # type: ignore[arg-type]


def test_a_plan_simulates_and_draws_on_a_machine_that_comes_along(dataset: Manifest) -> None:
    found = dlio.plan(dataset, nodes=4, machine="fugaku", simulate=True, strategy="partition").simulated
    assert found is not None and (found.strategy, found.num_bytes["source"]) == ("partition", dataset.num_bytes)
    drawn = ElementTree.fromstring(timeline(found))
    assert "partition on 4 nodes" in "".join(drawn.itertext())


def test_the_timeline_shows_nodes_as_ready_when_they_are() -> None:
    """Nodes whose disks have half the rate need twice as long, and the others are ready before."""
    machine = replace(MACHINE, source=1e12, client=1e12, local=1e9, cache_bytes=0, slow_share=0.25, slow_factor=0.5)
    found = simulate(EVEN, machine, "replicate")
    half = found.percentiles[50]
    ready = [share for seconds, _, share in found.timeline if seconds >= half]
    assert found.seconds == pytest.approx(2 * half, rel=0.01)
    assert 0.5 <= ready[0] < 1 and ready[-1] == 1
    points = [text.get("points", "").split() for text in ElementTree.fromstring(timeline(found))][-2]
    curve = [tuple(map(float, point.split(","))) for point in points]
    assert all(x == after or y == below for (x, y), (after, below) in pairwise(curve)), "nodes are ready at a moment"


def test_figures_beyond_all_machines_end_soon() -> None:
    assert shared(np.ones(2), 1.0, 10**18, 1.0).tolist() == [0.5, 0.5]
    with pytest.raises(UsageError, match="expected up to 1,000,000 nodes"):
        simulate(EVEN, replace(MACHINE, num_nodes=10**12), "replicate")
    with pytest.raises(UsageError, match="a seed from 0"):
        simulate(EVEN, MACHINE, "replicate", seed=-1)


def test_all_machines_that_come_along_are_described() -> None:
    assert len(machine_file.names()) >= 12
    for name in machine_file.names():
        assert machine_file.described(name, Machine(2, 1)).rates.startswith(name)
        assert (machine_file.FOLDER / f"{name}.toml").read_text().count("http") >= 1


def test_rates_that_a_machine_file_lacks_are_named(tmp_path: Path) -> None:
    path = tmp_path / "m.toml"
    path.write_text("client = 1e9\nnetwork = 2e9\n")
    assert machine_file.described(str(path), Machine(2, 1)).rates == f"{path}, which gives no source or local"
    path.write_text("source = 1e9\nclient = 1e9\nnetwork = 2e9\nlocal = 1e9\n")
    assert machine_file.described(str(path), Machine(2, 1)).rates == str(path)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("source = 0", "whose source is 0"),
        ("source = inf", "whose source is inf"),
        ("local = 5e-324", "whose local is 5e-324: expected a number from 1e-09 to 1e.18"),
        (f"cache_bytes = {10**400}", "expected 0, or a number"),
        ("source = '1'", "source as '1': expected a number"),
        ("source = nan", "whose source is nan: expected a number from 1e-09"),
        ("client = -1", "whose client is -1.0: expected a number from 1e-09"),
        ("source = true", "source as True: expected a number"),
        ("can_exchange = 1", "can_exchange as 1: expected a truth value"),
        ("num_targets = 0.5", "num_targets as 0.5: expected a whole number"),
        ("num_targets = nan", "num_targets as nan: expected a whole number"),
        ("free_bytes = inf", "free_bytes as inf: expected a whole number"),
        ("speed = 1", "'speed', which is not known: expected free_bytes"),
        ("num_nodes = 1", "'num_nodes', which is not known"),
        ("source", "not a machine file"),
        ("slow_share = 2", "expected 1 or less"),
        ("\x00", "not a machine file"),
    ],
)
def test_a_file_that_describes_no_machine_is_refused(text: str, problem: str, tmp_path: Path) -> None:
    path = tmp_path / "machine.toml"
    path.write_text(text)
    with pytest.raises(UsageError, match=f"{path}.*{problem}"):
        machine_file.described(str(path), Machine(2, 1))


def test_a_machine_file_decides_for_auto_and_is_named(dataset: Manifest, tmp_path: Path) -> None:
    path = tmp_path / "machine.toml"
    path.write_text("source = 1e3\nclient = 1e3\n")
    found = dlio.plan(dataset, nodes=4, machine=path)
    assert found.chosen.strategy == "broadcast" and str(path) in found.chosen.why
    with pytest.raises(UsageError, match="'mars' is not a machine: expected the path of a file, or abci, "):
        dlio.stage(dataset, tmp_path / "local", machine="mars")
    with pytest.raises(UsageError, match=r"did you mean perlmutter\?$"):
        dlio.plan(dataset, nodes=4, machine="perlmuter")
    dlio.stage(dataset, tmp_path / "local", machine=path)
