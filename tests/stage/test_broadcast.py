"""Broadcast over real MPI and over gloo: processes with host names of their own stand for nodes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from dlio.dataset.manifest import NAME, Manifest
from tests.helpers.slow_source import bytes_read
from tests.helpers.staging import MiB, assert_staged, damaged_files, write_dataset
from tests.stage.launched import Cluster, is_running, needs_mpiexec

pytest.importorskip("mpi4py")
pytestmark = [pytest.mark.jobs, needs_mpiexec]


@pytest.fixture
def dataset(large_dataset: Manifest) -> Manifest:
    """Twenty MiB, of several blocks."""
    return large_dataset


@pytest.mark.parametrize("nodes", [1, 4])
def test_each_byte_is_read_once_and_lands_on_every_node(
    nodes: int, dataset: Manifest, cluster: Cluster, slow_source: Callable[..., Path]
) -> None:
    mounted = slow_source(dataset.root)
    reports = cluster.run(mounted, nodes)
    for node in range(nodes):
        assert_staged(cluster.staged(dataset, node), dataset)
        assert reports[f"node{node}.{node}"]["copied_bytes"] == dataset.num_bytes
    assert sum(report["source_bytes"] for report in reports.values()) == dataset.num_bytes
    assert bytes_read(mounted) <= 1.001 * dataset.num_bytes + nodes * (dataset.root / NAME).stat().st_size


def test_one_process_of_each_node_takes_part(dataset: Manifest, any_cluster: Cluster) -> None:
    reports = any_cluster.run(dataset.root, 2, per_node=2)
    assert [reports[f"node{rank // 2}.{rank}"]["copied_bytes"] > 0 for rank in range(4)] == [True, False] * 2
    assert_staged(any_cluster.staged(dataset, 1), dataset)


def test_every_node_sees_how_far_all_have_come(dataset: Manifest, any_cluster: Cluster) -> None:
    any_cluster.run(dataset.root, 1)
    reports = any_cluster.run(dataset.root, 2)
    watched = reports["node0.0"]["watched"]
    assert watched == reports["node1.1"]["watched"]
    assert watched[0] == [["node0", 0, 0], ["node1", dataset.num_bytes, dataset.num_bytes]]
    lefts = [nodes[1][2] for nodes in watched]
    assert lefts == sorted(lefts, reverse=True)


def test_many_small_files(tmp_path: Path, cluster: Cluster) -> None:
    source = write_dataset(tmp_path / "many", [number % 7 * 1000 for number in range(300)])
    cluster.run(source.root, 3)
    for node in range(3):
        assert_staged(cluster.staged(source, node), source)


def test_a_second_broadcast_reads_only_for_new_nodes(dataset: Manifest, cluster: Cluster) -> None:
    cluster.run(dataset.root, 2)
    again = cluster.run(dataset.root, 2)
    assert all(report["source_bytes"] == report["copied_bytes"] == 0 for report in again.values())
    joined = cluster.run(dataset.root, 3)
    assert sum(report["source_bytes"] for report in joined.values()) == dataset.num_bytes
    assert [report["copied_bytes"] for report in joined.values()] == [0, 0, dataset.num_bytes]
    assert_staged(cluster.staged(dataset, 2), dataset)


def test_nodes_go_on_from_what_each_has(dataset: Manifest, cluster: Cluster) -> None:
    cluster.run(dataset.root, 2)
    for node, lost in ((0, "shard-00002.bin"), (1, "shard-00004.bin")):
        (cluster.staged(dataset, node).root / lost).unlink()
    reports = cluster.run(dataset.root, 2)
    sizes = {file.name: file.num_bytes for shard in dataset.shards for file in shard.files}
    wanted = [sizes["shard-00002.bin"], sizes["shard-00004.bin"]]
    assert [reports[f"node{node}.{node}"]["copied_bytes"] for node in range(2)] == wanted
    assert sum(report["source_bytes"] for report in reports.values()) == sum(wanted)
    assert_staged(cluster.staged(dataset, 0), dataset)


def test_terminated_nodes_end_and_go_on_later(
    tmp_path: Path, any_cluster: Cluster, slow_source: Callable[..., Path]
) -> None:
    source = write_dataset(tmp_path / "source", [12 * MiB] * 4)
    running = any_cluster.start(slow_source(source.root, "--bandwidth", "8"), 2)
    while not (claims := list(any_cluster.dest.glob("*/dlio/.claims/*/1"))) or sum(map(bytes_in, claims)) < 16 * MiB:
        time.sleep(0.02)
    for claim in claims:
        os.kill(json.loads(claim.read_text())["owner"]["pid"], signal.SIGINT)
    running.communicate()
    # mpiexec kills the others once one rank has ended, so only the first is sure to say so in its claim
    assert "released" in {json.loads(claim.read_text())["state"] for claim in claims}
    any_cluster.run(source.root, 2)
    assert_staged(any_cluster.staged(source, 1), source)


def bytes_in(claim: Path) -> int:
    """Returns how much lies in the copy that a claim is for, finished or not."""
    return sum(path.stat().st_size for path in (claim.parents[2] / claim.parent.name).rglob("*.bin"))


def test_a_damaged_source_is_an_error_on_every_node(dataset: Manifest, any_cluster: Cluster) -> None:
    damaged = dataset.root / "shard-00004.bin"
    damaged.write_bytes(bytes(damaged.stat().st_size))
    reports = any_cluster.run(dataset.root, 3)
    assert all("shard-00004.bin is damaged" in report["error"] for report in reports.values())
    assert not list(any_cluster.dest.rglob(NAME))
    assert not list(any_cluster.dest.rglob("*00004*"))


def test_an_unreadable_source_is_an_error_on_every_node(
    dataset: Manifest, cluster: Cluster, slow_source: Callable[..., Path]
) -> None:
    reports = cluster.run(slow_source(dataset.root, "--fail", "00004"), 3)
    assert all("shard-00004.bin: Input/output error" in report["error"] for report in reports.values())


def test_a_node_without_room_stops_all_before_the_first_byte(
    dataset: Manifest, cluster: Cluster, small_disk: Callable[[str], Path]
) -> None:
    disk = small_disk("size=8m")
    cluster.dest.mkdir()
    (cluster.dest / "node1").symlink_to(disk)
    reports = cluster.run(dataset.root, 3)
    assert all("failed on node1" in report["error"] and "are needed" in report["error"] for report in reports.values())
    assert not list(cluster.dest.rglob("shard-*"))


def test_a_disk_that_fills_up_meanwhile_stops_all(
    dataset: Manifest, cluster: Cluster, small_disk: Callable[[str], Path]
) -> None:
    disk = small_disk("size=24m")
    cluster.dest.mkdir()
    (cluster.dest / "node1").symlink_to(disk)
    reports = cluster.run(dataset.root, 3, fault="full")
    assert all("No space left" in report["error"] and report["exit_code"] == 4 for report in reports.values())
    assert not list(disk.glob("dlio/[!.]*"))


def test_a_disk_that_is_full_after_the_last_block_stops_all(
    tmp_path: Path, any_cluster: Cluster, small_disk: Callable[[str], Path]
) -> None:
    """The last bytes of a file, less than a page, are written when it is closed."""
    source = write_dataset(tmp_path / "source", [3 * MiB + 1] * 3)
    any_cluster.dest.mkdir()
    (any_cluster.dest / "node1").symlink_to(small_disk("size=24m"))
    reports = any_cluster.run(source.root, 3, fault="full end")
    assert all("No space left" in report["error"] and report["exit_code"] == 4 for report in reports.values())


def test_others_name_a_lost_node_and_a_rerun_goes_on(
    tmp_path: Path, any_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped rather than killed: like a node without power it says nothing, not even that it is gone."""
    source = write_dataset(tmp_path / "many", [2 * MiB] * 24)
    monkeypatch.setenv("LOST_SECONDS", "3")
    running = any_cluster.start(source.root, 3, fault="hang", options=("-disable-auto-cleanup",))
    while not (any_cluster.log / "hanging").exists():
        time.sleep(0.01)
    lost = int((any_cluster.log / "1.pid").read_text())
    os.kill(lost, signal.SIGSTOP)
    while len(any_cluster.reports()) < 2:
        time.sleep(0.05)
    os.kill(lost, signal.SIGKILL)
    running.communicate()
    reports = any_cluster.reports()
    assert sorted(reports) == ["node0.0", "node2.2"]
    assert all("lost in the middle of the broadcast: node1" in report["error"] for report in reports.values())
    for node in range(3):
        folder = any_cluster.dest / f"node{node}" / "dlio" / source.content_id
        assert damaged_files(folder, source) == []
    again = any_cluster.run(source.root, 3)
    assert sum(report["source_bytes"] for report in again.values()) <= source.num_bytes
    for node in range(3):
        assert_staged(any_cluster.staged(source, node), source)


@pytest.mark.parametrize(("moment", "lost"), [("first", 1), ("ready", 1), ("last", 1), ("last", 0)])
def test_others_name_a_node_that_falls_silent_outside_the_rounds(
    dataset: Manifest, any_cluster: Cluster, monkeypatch: pytest.MonkeyPatch, moment: str, lost: int
) -> None:
    """Before the first block, twice, and after the last one; node 0 takes the store with it."""
    monkeypatch.setenv("LOST_SECONDS", "3")
    cluster = any_cluster
    running = cluster.start(dataset.root, 3, fault=f"stop {moment} node{lost}", options=("-disable-auto-cleanup",))
    while len(cluster.reports()) < 2:
        assert running.poll() is None, running.communicate()
        time.sleep(0.05)
    os.kill(int((cluster.log / f"{lost}.pid").read_text()), signal.SIGKILL)
    running.communicate()
    reports = cluster.reports()
    assert sorted(reports) == [f"node{rank}.{rank}" for rank in range(3) if rank != lost]
    errors = [report.get("error", "none") for report in reports.values()]
    assert all(f"lost in the middle of the broadcast: node{lost} (" in error for error in errors), errors


@pytest.mark.parametrize("strategy", ["broadcast", "replicate"])
def test_others_name_a_node_that_falls_silent_after_its_part(
    dataset: Manifest, cluster: Cluster, monkeypatch: pytest.MonkeyPatch, strategy: str
) -> None:
    """MPI_Finalize would wait for ever."""
    monkeypatch.setenv("LOST_SECONDS", "2")
    monkeypatch.setenv("STRATEGY", strategy)
    running = cluster.start(dataset.root, 3, fault="stop after node1", options=("-disable-auto-cleanup",))
    reports = [cluster.log / f"node{rank}.lost" for rank in (0, 2)]
    while not all(path.exists() for path in reports):
        assert running.poll() is None, running.communicate()
        time.sleep(0.05)
    os.kill(int((cluster.log / "1.pid").read_text()), signal.SIGKILL)
    running.communicate()
    told = [path.read_text() for path in reports]  # one may have left when another calls the roll, and is named, too
    assert all("node1" in text.partition(" (ranks")[0] for text in told), told
    for node in range(3):
        assert_staged(cluster.staged(dataset, node), dataset)


def test_nobody_waits_for_a_node_silent_while_mpi_ends(
    dataset: Manifest, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOST_SECONDS", "2")
    monkeypatch.setenv("STRATEGY", "replicate")
    running = cluster.start(dataset.root, 2, fault="stop end node1", options=("-disable-auto-cleanup",))
    while not (cluster.log / "node0.0.json").exists():
        time.sleep(0.02)
    rank_0, rank_1 = (int((cluster.log / f"{rank}.pid").read_text()) for rank in range(2))
    while is_running(rank_0):
        time.sleep(0.05)
    os.kill(rank_1, signal.SIGKILL)
    running.communicate()


def test_repeated_interrupts_end_all_nodes(tmp_path: Path, cluster: Cluster, slow_source: Callable[..., Path]) -> None:
    source = write_dataset(tmp_path / "source", [12 * MiB] * 4)
    mounted = slow_source(source.root, "--bandwidth", "8")
    running = cluster.start(mounted, 2, options=("-disable-auto-cleanup",))
    while not list(cluster.dest.glob("*/dlio/*/.dlio/aside/*/*.bin")):
        time.sleep(0.02)
    ranks = [int((cluster.log / f"{rank}.pid").read_text()) for rank in range(2)]
    for rank in 3 * ranks:  # mpiexec sends them more than once, too
        with suppress(ProcessLookupError):
            os.kill(rank, signal.SIGINT)
        time.sleep(0.005)
    running.communicate(timeout=40)


def test_a_process_that_never_comes_is_named(
    tmp_path: Path, dataset: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    monkeypatch.setenv("LOST_SECONDS", "2")
    cluster = Cluster(tmp_path, "gloo")
    cluster.start(dataset.root, 3, fault="absent").communicate()
    errors = [report["error"] for report in cluster.reports().values()]
    assert len(errors) == 2
    assert all("ranks [1] of the ring are lost" in error for error in errors), errors
    assert any("did not come within 2 s; start dlio stage in every process" in error for error in errors), errors


def test_broadcast_needs_an_mpi_that_sees_all_processes(dataset: Manifest, tmp_path: Path) -> None:
    code = (
        "import dlio, sys; from dlio.cluster.topology import Topology;"
        "dlio.stage(sys.argv[1], sys.argv[2], strategy='broadcast', topology=Topology(1, 4))"
    )
    command = [sys.executable, "-c", code, str(dataset.root), str(tmp_path / "local")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "LauncherError: MPI sees process 0 of 1, the launcher given says 1 of 4" in done.stderr
