"""Broadcast to nodes that meet by real MPI, or in a folder: processes with their own host names stand for them."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

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
    assert not (cluster.log.parent / "nowhere").exists()  # by MPI no folder is needed to meet


def test_one_process_of_each_node_takes_part(dataset: Manifest, any_cluster: Cluster) -> None:
    reports = any_cluster.run(dataset.root, 2, per_node=2)
    assert [reports[f"node{rank // 2}.{rank}"]["copied_bytes"] > 0 for rank in range(4)] == [True, False] * 2
    assert_staged(any_cluster.staged(dataset, 1), dataset)


def test_processes_that_know_only_their_ranks_number_their_nodes(
    dataset: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UNNUMBERED", "1")
    cluster = Cluster(tmp_path, "folder")
    reports = cluster.run(dataset.root, 2, per_node=2)
    assert sum(report["source_bytes"] for report in reports.values()) == dataset.num_bytes
    for node in range(2):
        assert_staged(cluster.staged(dataset, node), dataset)
    assert not list((tmp_path / "meet").glob("*/*"))


def test_every_node_sees_how_far_all_have_come(dataset: Manifest, any_cluster: Cluster) -> None:
    any_cluster.run(dataset.root, 1)
    reports = any_cluster.run(dataset.root, 2)
    for name in ("node0.0", "node1.1"):
        watched = reports[name]["watched"]
        assert watched[-1] == [["node0", 0, 0], ["node1", dataset.num_bytes, 0]]
        lefts = [left for nodes in watched for host, _, left in nodes if host == "node1"]
        assert lefts == sorted(lefts, reverse=True)


def test_many_connections_need_no_larger_limit(
    dataset: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thousand files are the usual limit, and some hundred nodes need more."""
    monkeypatch.setenv("OPEN_FILES", "12")
    cluster = Cluster(tmp_path, "folder")
    reports = cluster.run(dataset.root, 4)
    assert [report.get("error") for report in reports.values()] == [None] * 4


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
    assert sum(report["source_bytes"] for report in joined.values()) <= dataset.num_bytes
    assert [report["copied_bytes"] for report in joined.values()] == [0, 0, dataset.num_bytes]
    assert_staged(cluster.staged(dataset, 2), dataset)


def test_nodes_that_have_all_wait_for_one_that_comes_late(
    dataset: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It still reads its own part, and gets the rest from the others."""
    cluster = Cluster(tmp_path, "folder")
    cluster.run(dataset.root, 2)
    reports = cluster.run(dataset.root, 3, fault="late")
    assert reports["node2.2"]["source_bytes"] < dataset.num_bytes // 2
    assert_staged(cluster.staged(dataset, 2), dataset)


def test_nodes_go_on_from_what_each_has(dataset: Manifest, cluster: Cluster) -> None:
    cluster.run(dataset.root, 2)
    for node, lost in ((0, "shard-00002.bin"), (1, "shard-00004.bin")):
        (cluster.staged(dataset, node).root / lost).unlink()
    reports = cluster.run(dataset.root, 2)
    sizes = {file.name: file.num_bytes for shard in dataset.shards for file in shard.files}
    wanted = [sizes["shard-00002.bin"], sizes["shard-00004.bin"]]
    assert [reports[f"node{node}.{node}"]["copied_bytes"] for node in range(2)] == wanted
    assert sum(report["source_bytes"] for report in reports.values()) <= sum(wanted)
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


ENDED = "node 1 (node1) ended before its copy was complete: "  # known to those who meet in a folder


def test_a_node_without_room_says_so_and_the_others_go_on(
    dataset: Manifest, any_cluster: Cluster, small_disk: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LATE_SECONDS", "20")
    disk = small_disk("size=8m")
    any_cluster.dest.mkdir()
    (any_cluster.dest / "node1").symlink_to(disk)
    said, reports = "".join(any_cluster.start(dataset.root, 3).communicate()), any_cluster.reports()
    assert "were not heard of" not in said  # nobody has waited for it
    assert "are needed" in reports["node1.1"]["error"]
    assert said.count(ENDED) == (2 if any_cluster.transport == "folder" else 0), said
    assert f"{ENDED}[Errno" not in said
    check_others(any_cluster, reports, dataset)
    assert not list(disk.rglob("shard-*"))


def test_a_disk_that_fills_up_meanwhile_is_an_error_of_its_node(
    dataset: Manifest, any_cluster: Cluster, small_disk: Callable[[str], Path]
) -> None:
    disk = small_disk("size=24m")
    any_cluster.dest.mkdir()
    (any_cluster.dest / "node1").symlink_to(disk)
    said = "".join(any_cluster.start(dataset.root, 3, fault="full").communicate())
    reports = any_cluster.reports()
    assert said.count(ENDED) == (2 if any_cluster.transport == "folder" else 0), said
    assert "No space left" in reports["node1.1"]["error"] and reports["node1.1"]["exit_code"] == 4
    check_others(any_cluster, reports, dataset)
    assert not list(disk.glob("dlio/[!.]*"))


def check_others(cluster: Cluster, reports: dict[str, Any], source: Manifest, lost: int = 1) -> None:
    """Checks that all nodes of three but one have all."""
    for node in {0, 1, 2} - {lost}:
        assert reports[f"node{node}.{node}"]["copied_bytes"] == source.num_bytes
        assert_staged(cluster.staged(source, node), source)


@pytest.mark.parametrize("moment", ["hang", "stop last node1"])
def test_others_go_on_without_a_lost_node_and_name_it(
    tmp_path: Path, any_cluster: Cluster, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """Stopped rather than killed: like a node without power it sends nothing, not even at its end."""
    source = write_dataset(tmp_path / "many", [2 * MiB] * 24)
    monkeypatch.setenv("LOST_SECONDS", "3")
    running = any_cluster.start(source.root, 3, fault=moment, options=("-disable-auto-cleanup",))
    if moment == "hang":
        while not (any_cluster.log / "hanging").exists():
            time.sleep(0.01)
        os.kill(int((any_cluster.log / "1.pid").read_text()), signal.SIGSTOP)
    while len(any_cluster.reports()) < 2:
        assert running.poll() is None, running.communicate()
        time.sleep(0.05)
    os.kill(int((any_cluster.log / "1.pid").read_text()), signal.SIGKILL)
    said = "".join(running.communicate())
    assert said.count("node 1 (node1) was lost before its copy was complete") == 2, said
    reports = any_cluster.reports()
    assert sorted(reports) == ["node0.0", "node2.2"]
    check_others(any_cluster, reports, source)
    assert damaged_files(any_cluster.dest / "node1" / "dlio" / source.content_id, source) == []
    again = any_cluster.run(source.root, 3)
    assert sum(report["source_bytes"] for report in again.values()) <= source.num_bytes
    for node in range(3):
        assert_staged(any_cluster.staged(source, node), source)


def test_a_node_that_dies_does_not_stop_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hydra ends all processes when one of them dies."""
    monkeypatch.setenv("LATE_SECONDS", "5")
    cluster, source = Cluster(tmp_path, "folder"), write_dataset(tmp_path / "many", [2 * MiB] * 24)
    running = cluster.start(source.root, 3, fault="hang")
    while not (cluster.log / "hanging").exists():
        time.sleep(0.01)
    os.kill(int((cluster.log / "1.pid").read_text()), signal.SIGKILL)
    running.communicate()
    check_others(cluster, cluster.reports(), source)


@pytest.mark.parametrize("moment", ["agree", "finalize", "agreed"])
def test_nobody_waits_for_ever_for_a_node_that_is_silent_while_mpi_starts_and_ends(
    dataset: Manifest, cluster: Cluster, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """Before all have agreed, before MPI_Finalize, which would wait forever, and after it."""
    monkeypatch.setenv("LOST_SECONDS", "2")
    monkeypatch.setenv("ARRIVAL_SECONDS", "3")
    monkeypatch.setenv("LATE_SECONDS", "4")
    running = cluster.start(dataset.root, 3, fault=f"stop {moment} node1", options=("-disable-auto-cleanup",))
    while not all((cluster.log / f"{rank}.pid").exists() for rank in range(3)):
        assert running.poll() is None, running.communicate()
        time.sleep(0.02)
    ranks = [int((cluster.log / f"{rank}.pid").read_text()) for rank in range(3)]
    while any(map(is_running, (ranks[0], ranks[2]))):
        time.sleep(0.05)
    os.kill(ranks[1], signal.SIGKILL)
    said = "".join(running.communicate())
    if moment == "agree":
        errors = [report["error"] for report in cluster.reports().values()]
        assert errors and all("were lost: not all started within 3 s" in error for error in errors), errors
    if moment == "agreed":
        assert said.count("nodes [1] of 3 were not heard of") == 2, said
        check_others(cluster, cluster.reports(), dataset)


def test_repeated_interrupts_end_all_nodes(tmp_path: Path, cluster: Cluster, slow_source: Callable[..., Path]) -> None:
    source = write_dataset(tmp_path / "source", [12 * MiB] * 4)
    mounted = slow_source(source.root, "--bandwidth", "8")
    running = cluster.start(mounted, 2, options=("-disable-auto-cleanup",))
    while not list(cluster.dest.glob("*/dlio/*/.dlio/live/files/*.bin")):
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
    monkeypatch.setenv("ARRIVAL_SECONDS", "2")
    monkeypatch.setenv("UNNUMBERED", "1")
    cluster = Cluster(tmp_path, "folder")
    cluster.start(dataset.root, 3, fault="absent").communicate()
    errors = [report["error"] for report in cluster.reports().values()]
    assert len(errors) == 2
    assert all("ranks [1] of 3 did not come" in error and "in every process" in error for error in errors), errors


def test_a_node_that_fails_before_all_have_agreed_keeps_nobody_waiting(dataset: Manifest, cluster: Cluster) -> None:
    cluster.dest.mkdir()
    (cluster.dest / "node1").write_text("a file where a folder should be")
    reports = cluster.run(dataset.root, 3)
    assert "is a file" in reports["node1.1"]["error"]
    check_others(cluster, reports, dataset)


def test_an_mpi_that_does_not_start_leaves_the_nodes_to_a_folder(
    dataset: Manifest, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MPI4PY_LIBMPI", str(dataset.root / "libmpi.so"))
    monkeypatch.setenv("NUM_NODES", "2")
    reports = cluster.run(dataset.root, 2)
    assert sum(report["source_bytes"] for report in reports.values()) == dataset.num_bytes
    assert [report["copied_bytes"] for report in reports.values()] == [dataset.num_bytes] * 2
