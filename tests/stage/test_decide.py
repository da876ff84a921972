"""What `auto` decides on real file systems, and what a dry run says."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

import dlio
from dlio.cli import main
from dlio.cluster import mpi
from dlio.dataset.manifest import NAME, Manifest
from dlio.errors import StorageError, UsageError
from dlio.stage.choose import choice
from dlio.stage.choose.choice import decide, machine_of, room_at
from dlio.stage.client.start import ensure_agent
from dlio.stage.copies.folder import StagedFolder
from dlio.stage.copies.node_cache import room
from dlio.stage.planning.job import Options
from dlio.stage.run import preview, run
from tests.helpers.staging import MiB, assert_staged, job_of, node, write_dataset


@pytest.fixture
def dataset(large_dataset: Manifest) -> Manifest:
    """Twenty MiB, of several blocks."""
    return large_dataset


def test_one_node_with_room_takes_the_whole(dataset: Manifest, tmp_path: Path) -> None:
    decision, _ = decide(job_of(dataset, tmp_path / "local", node(0, 1)))
    assert (decision.strategy, decision.bytes_per_node) == ("replicate", dataset.num_bytes)
    staged, summary = run(dataset, tmp_path / "local", strategy="auto")
    assert summary.strategy == "replicate"
    assert_staged(staged, dataset)
    assert decide(job_of(dataset, tmp_path / "local", node(0, 1)))[0].why == "the copy exists already"


def test_nodes_that_cannot_agree_refuse_to_stage_in_parts(dataset: Manifest, small_disk: Callable[[str], Path]) -> None:
    disk = small_disk("size=19m")
    with pytest.raises(StorageError, match=r"do not fit into the .* take the strategy partition with 1 copy"):
        dlio.stage(dataset, disk, topology=node(0, 3))


def test_too_large_data_are_refused_with_figures(dataset: Manifest, small_disk: Callable[[str], Path]) -> None:
    disk = small_disk("size=5m")
    with pytest.raises(StorageError, match=r"one shard of 9,437,184 bytes does not fit: a node has room for 5,"):
        dlio.stage(dataset, disk, topology=node(0, 3))
    with pytest.raises(StorageError, match=r"5,[\d,]+ bytes free and 20,[\d,]+ are needed"):
        dlio.stage(dataset, disk, topology=node(0, 1))


def test_half_of_the_memory_counts_as_room(
    dataset: Manifest, tmp_path: Path, small_disk: Callable[[str], Path]
) -> None:
    from dlio.io.filesystems import memory_left

    disk = small_disk("size=1000g")
    job = job_of(dataset, disk, node(0, 2))
    assert machine_of(job, room_at(job)).free_bytes <= 0.51 * memory_left()


def test_a_shared_folder_is_filled_by_all_nodes(
    dataset: Manifest, tmp_path: Path, slow_source: Callable[..., Path]
) -> None:
    shared = slow_source(dataset.root)
    assert decide(job_of(dataset, shared, node(0, 4)))[0].strategy == "stripe"


def test_room_includes_what_may_be_evicted(tmp_path: Path, small_disk: Callable[[str], Path]) -> None:
    first, second = (write_dataset(tmp_path / f"source{seed}", [8 * MiB], seed=seed) for seed in range(2))
    disk = small_disk("size=60m")
    dlio.stage(first, disk, topology=node(0, 1))
    assert room(StagedFolder(disk, first.content_id)).free_bytes > 59 * MiB
    assert room(StagedFolder(disk, second.content_id)).free_bytes < 53 * MiB  # the first is leased by this session
    from dlio.stage.upkeep.clean import clean

    clean(disk, keep=True)
    assert room(StagedFolder(disk, second.content_id)).free_bytes > 59 * MiB


@pytest.mark.parametrize("strategy", ["auto", "replicate", "broadcast", "partition", "stripe"])
def test_a_dry_run_says_everything_looks_once_and_writes_nothing(
    dataset: Manifest, tmp_path: Path, strategy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = list[StagedFolder]()
    monkeypatch.setattr(choice, "room", lambda folder: [looks.append(folder), room(folder)][1])
    seen = preview(dataset.root, tmp_path / "local", strategy=strategy, topology=node(1, 4)).to_json()
    assert len(looks) == 1
    copy = dataset.content_id + (".1of4x1" if strategy == "partition" else "")
    assert seen["path"] == str(tmp_path / "local" / "dlio" / copy)
    assert seen["why"]
    assert seen["content_id"] == dataset.content_id
    assert seen["seconds"] > 0
    assert seen["strategy"] == ("replicate" if strategy == "auto" else strategy)
    assert " at /" in seen["file_system"]
    assert not (tmp_path / "local").exists()
    json.dumps(seen, allow_nan=False)


def test_a_dry_run_in_parts_counts_what_is_here_of_this_nodes_part(
    tmp_path: Path, small_disk: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset, disk = write_dataset(tmp_path / "source", [MiB] * 8), small_disk("size=10m,nr_inodes=100")
    part, _ = run(dataset, disk, strategy="partition", topology=node(0, 2))
    (part.root / NAME).unlink()  # as if it was killed before it published this
    other = SimpleNamespace(gather=lambda kind, value: [value, ("the other node", *value[1:])])
    monkeypatch.setattr(mpi, "processes", lambda topology: other)
    for number in range(os.statvfs(disk).f_favail - 3):  # of four files
        (disk / str(number)).touch()
    assert preview(dataset, disk, strategy="auto", topology=node(0, 2)).decision.strategy == "partition"


def test_a_dry_run_of_any_file_speaks_of_no_epochs(
    dataset: Manifest, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "weights").write_bytes(b"1")
    for path, expected in ((tmp_path / "weights", False), (dataset.root, True)):
        assert main(["stage", str(path), str(tmp_path / "local"), "--dry-run"]) == 0
        assert ("epochs" in capsys.readouterr().out) == expected


def test_a_dry_run_refuses_what_stage_would_refuse(
    dataset: Manifest, tmp_path: Path, slow_source: Callable[..., Path]
) -> None:
    shared = slow_source(dataset.root)
    with pytest.raises(UsageError, match="3 copies on 2 nodes: give at least 1"):
        preview(dataset, tmp_path, strategy="partition", options=Options(copies=3), topology=node(0, 2))
    with pytest.raises(UsageError, match="other machines see too"):
        preview(dataset, shared / "local", strategy="replicate", topology=node(0, 1))


WAYS: dict[str, Callable[..., object]] = {"run": run, "preview": preview, "ensure_agent": ensure_agent}


@pytest.mark.parametrize("way", WAYS)
def test_all_ways_to_stage_refuse_a_mode_that_lets_others_write(way: str, dataset: Manifest, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="mode 666: staged files can be 600, 640 or 644"):
        WAYS[way](dataset.root, tmp_path / "local", options=Options(mode=0o666))
    assert not (tmp_path / "local").exists()
