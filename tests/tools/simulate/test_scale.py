"""The three levels of simulation agree: the real engine with a shard as one span, and the plan of `dlio plan`."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dlio.stage import simulate
from dlio.stage.planning.cost import Machine
from dlio.stage.planning.simulation import Simulation
from tests.helpers.forked import Forked
from tests.helpers.staging import one_file_each
from tools.simulate import forked, scale

_MACHINE = Machine(4, 10**15, source=100e9, client=100e9, network=25e9, local=2e9)


def _engine(job: scale.Job, tmp_path: Path) -> scale.Found:
    """Returns what the engine does, in its own process."""
    return forked.apart(lambda: scale.simulated(job, tmp_path))


def _planned(job: scale.Job) -> Simulation:
    """Returns what `dlio plan` says."""
    sizes = one_file_each(np.full(job.shards, job.shard_bytes))
    return simulate(sizes, job.machine, "broadcast", seed=job.seed)


@pytest.mark.parametrize(
    ("change", "seed", "shards", "shard_bytes", "spans"),
    [
        ({}, 1, 104, 256_000_000, 1),
        ({"source": 1e9}, 1, 104, 256_000_000, 1),
        ({"network": 5e8}, 1, 208, 32_000_000, 1),  # a span that takes longer than a node waits proves nothing
        ({"network": 5e8}, 1, 52, 64_000_000, 16),
        ({"slow_share": 0.25, "slow_factor": 0.5}, 3, 104, 256_000_000, 1),
    ],
    ids=["disks", "source", "links", "links and spans", "stragglers"],
)
def test_engine_and_plan_agree_within_a_tenth(
    change: dict[str, Any], seed: int, shards: int, shard_bytes: int, spans: int, tmp_path: Path
) -> None:
    machine = replace(_MACHINE, **change)
    job = scale.Job(4, shards, shard_bytes, machine, seed, spans)
    found, planned = _engine(job, tmp_path), _planned(job)
    assert found.seconds == pytest.approx(planned.seconds, rel=0.1)
    assert found.half == pytest.approx(planned.percentiles[50], rel=0.1)
    assert found.source == 1.0
    assert found.most_served < 2
    assert found.opens_later <= 2 < found.opens < 4 * machine.num_nodes
    assert found.seconds < 1.15 * job.bound * (1 / machine.slow_factor if machine.slow_share else 1)


def test_nodes_that_are_more_than_one_has_connections_for_read_the_source_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(scale, "_CONNECTIONS", 150)  # 6 to each node that reads, which 40 want
    assert _engine(scale.Job(40, 6, 256_000_000, _MACHINE), tmp_path).source == 1.0


@pytest.mark.jobs
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("shards", "shard_bytes", "source", "spans"),
    [(1, 25_600_000_000, 100e9, 1), (400, 32_000_000, 10e9, 1), (400, 16_000_000, 2.5e9, 4)],
    ids=["a large shard", "disks", "source and disks"],
)
def test_engine_and_plan_agree_on_many_nodes(
    shards: int, shard_bytes: int, source: float, spans: int, tmp_path: Path
) -> None:
    """Where there is one shard, nodes read it together; where disks wait for the source, spans are those of jobs."""
    job = scale.Job(25, shards, shard_bytes, replace(_MACHINE, num_nodes=25, client=25e9, source=source), spans=spans)
    found, planned = _engine(job, tmp_path), _planned(job)
    assert found.seconds == pytest.approx(planned.seconds, rel=0.1)
    assert found.half == pytest.approx(planned.percentiles[50], rel=0.1)
    assert found.source == 1.0
    assert found.most_served < 2


def test_a_killed_node_comes_again_and_the_source_is_read_at_most_once_more(tmp_path: Path) -> None:
    job = scale.Job(4, 52, 256_000_000, replace(_MACHINE, failures=400.0), 1)
    found = _engine(job, tmp_path)
    assert found.failures
    assert 1.0 <= found.source < 2.0


@pytest.mark.parametrize(
    ("option", "problem"),
    [
        ("--nodes=0", "'0' is not a number >= 1"),
        ("--shards=0", "'0' is not a number >= 1"),
        ("--size=0", "'0' is not a size above 0"),
        ("--slow=5", "'5' is not a number from 0 to 1"),
        ("--lost=-1", "'-1' is not a number from 0 to 1e+09"),
    ],
)
def test_a_job_that_cannot_be_is_refused(
    option: str, problem: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["scale", option])
    with pytest.raises(SystemExit, match="2"):
        scale.main()
    assert problem in capsys.readouterr().err


def test_a_simulation_that_fails_says_why(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["scale", "--nodes=2", "--shards=2", "--source=1000"])
    assert Forked(scale.main).wait() == 2
    assert capfd.readouterr() == ("", "a source of 1,000 bytes/s gives no simulated byte: give 3,906 or more\n")


@pytest.mark.jobs
def test_whole_shards_and_shards_of_spans_agree_on_16_nodes(tmp_path: Path) -> None:
    machine = replace(_MACHINE, num_nodes=16, client=25e9)
    whole, spans = (scale.Job(16, 64, 256_000_000, machine, spans=each) for each in (1, 8))
    (tmp_path / "whole").mkdir()
    (tmp_path / "spans").mkdir()
    found = [_engine(whole, tmp_path / "whole"), _engine(spans, tmp_path / "spans")]
    assert found[0].seconds == pytest.approx(found[1].seconds, rel=0.1)
    for each in found:
        assert each.source == 1.0
        assert each.seconds < 1.15 * whole.bound
        assert each.most_served < 2
