"""The progress of all nodes on rank 0, which nodes that each copy for themselves write to a folder."""

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

pytestmark = needs_mpiexec


@pytest.fixture
def dataset(large_dataset: Manifest) -> Manifest:
    """Twenty MiB, of several blocks."""
    return large_dataset


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
    monkeypatch.setenv("TOGETHER", "2")
    running = any_cluster.start(slow_source(dataset.root, "--bandwidth", "10"), 2)
    said = running.communicate()
    assert running.poll() == 0, said
    reports = any_cluster.reports()
    hosts, totals, lefts = zip(*sorted(reports["node0.0"]["watched"][-1]), strict=True)
    assert hosts == ("node0", "node1")
    assert list(totals) == [reports[f"node{node}.{node}"]["copied_bytes"] for node in range(2)]
    assert sum(totals) == dataset.num_bytes * (2 if strategy == "replicate" else 1)
    assert lefts == (0, 0)
    assert reports["node1.1"]["watched"] == []


def test_without_a_folder_to_meet_in_rank_0_sees_its_own_node(
    dataset: Manifest, tmp_path: Path, slow_source: Callable[..., Path]
) -> None:
    (tmp_path / "meet").write_text("no folder")
    cluster = Cluster(tmp_path, "folder")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STRATEGY", "replicate")
        reports = cluster.run(slow_source(dataset.root, "--bandwidth", "40"), 2)
    assert reports["node0.0"]["watched"] == []
    assert reports["node0.0"]["reported"] == dataset.num_bytes


def test_rank_0_stops_waiting_for_the_progress_of_lost_nodes(
    dataset: Manifest, any_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STRATEGY", "replicate")
    monkeypatch.setenv("LOST_SECONDS", "1")
    running = any_cluster.start(dataset.root, 2, fault="hang")
    while "node0.0" not in any_cluster.reports() or not (any_cluster.log / "1.pid").exists():
        assert running.poll() is None, running.communicate()
        time.sleep(0.02)
    with suppress(ProcessLookupError):  # it has seen that node 0 has ended
        os.kill(int((any_cluster.log / "1.pid").read_text()), signal.SIGKILL)
    running.communicate()
    assert_staged(any_cluster.staged(dataset, 0), dataset)


def test_a_signal_ends_rank_0_while_it_waits_for_progress(
    dataset: Manifest, tmp_path: Path, slow_source: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Cluster(tmp_path, "folder")
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
