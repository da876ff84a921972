"""The progress of all nodes on rank 0, over real MPI and in the store of a torchrun's agent."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from dlio.dataset.manifest import Manifest
from tests.helpers.staging import assert_staged
from tests.stage.launched import Cluster, is_running, needs_mpiexec

pytest.importorskip("mpi4py")
pytestmark = needs_mpiexec


@pytest.fixture
def dataset(large_dataset: Manifest) -> Manifest:
    """Twenty MiB, of several blocks."""
    return large_dataset


@pytest.fixture
def agent_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the processes know each other by MASTER_ADDR, a torchrun's agent serves the store there."""
    monkeypatch.setenv("AGENT_STORE", "")


@pytest.mark.usefixtures("agent_store")
@pytest.mark.parametrize("strategy", ["replicate", "partition"])
def test_rank_0_sees_the_progress_of_all_nodes(
    strategy: str,
    dataset: Manifest,
    any_cluster: Cluster,
    slow_source: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("STRATEGY", strategy)
    monkeypatch.setenv("NUM_NODES", "2")
    running = any_cluster.start(slow_source(dataset.root, "--bandwidth", "40"), 2)
    said = running.communicate()
    assert running.poll() == 0, said
    reports = any_cluster.reports()
    hosts, totals, lefts = zip(*sorted(reports["node0.0"]["watched"][-1]), strict=True)
    assert hosts == ("node0", "node1")
    assert list(totals) == [reports[f"node{node}.{node}"]["copied_bytes"] for node in range(2)]
    assert sum(totals) == dataset.num_bytes * (2 if strategy == "replicate" else 1)
    assert lefts == (0, 0)
    assert reports["node1.1"]["watched"] == []


def test_progress_does_not_take_the_trainings_port(
    dataset: Manifest, tmp_path: Path, slow_source: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    monkeypatch.setenv("STRATEGY", "replicate")
    reports = Cluster(tmp_path, "gloo").run(slow_source(dataset.root, "--bandwidth", "40"), 2)
    assert reports["node0.0"]["watched"] == []
    assert reports["node0.0"]["reported"] == dataset.num_bytes  # its own bytes all the same


def test_an_mpi_that_does_not_start_keeps_nobody_from_copying(
    dataset: Manifest, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MPI4PY_LIBMPI", str(dataset.root / "libmpi.so"))
    assert all("mpi4py" in report["error"] for report in cluster.run(dataset.root, 2).values())
    monkeypatch.setenv("STRATEGY", "replicate")
    reports = cluster.run(dataset.root, 2)
    assert [report["copied_bytes"] for report in reports.values()] == [dataset.num_bytes] * 2


@pytest.mark.usefixtures("agent_store")
def test_rank_0_stops_waiting_for_the_progress_of_lost_nodes(
    dataset: Manifest, any_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STRATEGY", "replicate")
    monkeypatch.setenv("LOST_SECONDS", "1")
    running = any_cluster.start(dataset.root, 2, fault="hang")
    while "node0.0" not in any_cluster.reports() or not (any_cluster.log / "1.pid").exists():
        assert running.poll() is None, running.communicate()
        time.sleep(0.02)
    with suppress(ProcessLookupError):  # it has seen that node 0 is gone
        os.kill(int((any_cluster.log / "1.pid").read_text()), signal.SIGKILL)
    running.communicate()
    assert_staged(any_cluster.staged(dataset, 0), dataset)


@pytest.mark.usefixtures("agent_store")
def test_a_signal_ends_rank_0_while_it_waits_for_progress(
    dataset: Manifest, tmp_path: Path, slow_source: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    cluster = Cluster(tmp_path, "gloo")
    monkeypatch.setenv("STRATEGY", "replicate")
    cluster.run(dataset.root, 1)
    (cluster.staged(dataset, 0).root / "shard-00004.bin").unlink()
    monkeypatch.setenv("LOST_SECONDS", "600")
    running = cluster.start(slow_source(dataset.root, "--bandwidth", "16"), 2)
    while not (cluster.log / "heard").exists():
        assert running.poll() is None, running.communicate()
        time.sleep(0.02)
    rank_0, rank_1 = (int((cluster.log / f"{rank}.pid").read_text()) for rank in (0, 1))
    os.kill(rank_1, signal.SIGSTOP)
    while not (cluster.staged(dataset, 0).root / "shard-00004.bin").exists():
        time.sleep(0.02)
    time.sleep(0.3)  # now it waits, as a rule
    os.kill(rank_0, signal.SIGINT)
    while is_running(rank_0):
        time.sleep(0.02)
    os.kill(rank_1, signal.SIGKILL)
    running.communicate()


def test_messages_that_rank_0_never_reads_let_mpi_end_well(
    dataset: Manifest, cluster: Cluster, slow_source: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STRATEGY", "replicate")
    cluster.run(dataset.root, 1)
    running = cluster.start(slow_source(dataset.root, "--bandwidth", "40"), 3)
    said = running.communicate()
    assert running.poll() == 0, said
    reports = cluster.reports()
    assert [report["copied_bytes"] for report in reports.values()] == [0, dataset.num_bytes, dataset.num_bytes]
    assert reports["node0.0"]["watched"] == []
