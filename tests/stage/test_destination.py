"""Where a data set goes when the user names no folder."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

import dlio
from dlio import cli
from dlio.dataset.manifest import Manifest
from dlio.errors import StorageError, UsageError
from dlio.io import filesystems
from dlio.stage.choose import choice
from dlio.stage.choose.choice import learn_id, with_dest
from dlio.stage.client import launch
from dlio.stage.client.start import Task, ensure_agent
from dlio.stage.run import preview, run
from tests.helpers.forked import Forked
from tests.helpers.staging import MiB, assert_staged, job_of, node, write_dataset


@pytest.fixture
def dataset(large_dataset: Manifest) -> Manifest:
    """Twenty MiB, of several blocks."""
    return large_dataset


@pytest.fixture
def disks(small_disk: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """A small and a larger disk, announced in this order, and no other local folder."""
    small, large = small_disk("size=4m"), small_disk("size=64m")
    monkeypatch.setenv("SLURM_TMPDIR", str(small))
    monkeypatch.setenv("LOCAL_SCRATCH", str(large))
    for name in ("PBS_JOBFS", "FLUX_JOB_TMPDIR", "LSB_JOB_TMPDIR", "TMPDIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(filesystems, "_USUAL", ())
    return small, large


def test_the_first_folder_with_room_is_taken(disks: tuple[Path, Path], tmp_path: Path) -> None:
    for size, disk in ((2 * MiB, disks[0]), (20 * MiB, disks[1])):
        source = write_dataset(tmp_path / str(size), [size], seed=size)
        staged = dlio.stage(source)
        assert staged.root == disk / "dlio" / source.content_id
        assert_staged(staged, source)


def test_a_folder_that_has_the_data_set_comes_first(disks: tuple[Path, Path], tmp_path: Path) -> None:
    source = write_dataset(tmp_path / "source", [2 * MiB])
    staged = dlio.stage(source, disks[1])
    assert dlio.stage(source).root == staged.root


def test_the_command_says_which_folder_it_takes(
    disks: tuple[Path, Path], dataset: Manifest, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["stage", str(dataset.root)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"staging to {disks[1]}, on tmpfs at {disks[1]}"
    assert lines[-1] == str(disks[1] / "dlio" / dataset.content_id)


def test_after_a_folder_fills_up_the_next_one_is_taken(
    small_disk: Callable[[str], Path], disks: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = small_disk("size=30m")
    monkeypatch.setenv("SLURM_TMPDIR", str(first))
    source = write_dataset(tmp_path / "source", [MiB] * 24)  # when the first is reported, at most 12 are being written

    def fill_up(_: int) -> None:
        if not (first / "hog").exists():
            with suppress(OSError):  # it takes what is left of the disk
                (first / "hog").write_bytes(bytes(20 * MiB))

    waiting = Forked(lambda: wait_and_stage(source, first))
    staged = dlio.stage(source, report=fill_up)
    assert staged.root == disks[1] / "dlio" / source.content_id
    assert_staged(staged, source)
    assert waiting.wait() == 0
    assert not list(first.glob("dlio/[!.]*"))


def wait_and_stage(source: Manifest, first: Path) -> None:
    """Stages once another process has claimed the copy; what that one meets, this one does as well."""
    while not list(first.glob("dlio/.claims/*/1")):
        time.sleep(0.001)
    assert dlio.stage(source).root.parent.parent != first


def test_room_nowhere_is_said_with_what_there_is(disks: tuple[Path, Path], tmp_path: Path) -> None:
    source = write_dataset(tmp_path / "source", [30 * MiB, 30 * MiB, 30 * MiB])
    with pytest.raises(StorageError, match=rf"no local folder has room .*{disks[0]} .*{disks[1]} .*name a DEST"):
        dlio.stage(source)
    job = job_of(source, tmp_path, node(0, 3))
    assert with_dest(job, "auto").dest == with_dest(job, "partition").dest == disks[1]
    with pytest.raises(UsageError, match="stripe needs DEST"):
        with_dest(job, "stripe")


@pytest.mark.parametrize("strategy", ["auto", "replicate"])
def test_all_ways_to_stage_choose_the_same_folder_and_strategy(
    strategy: str, disks: tuple[Path, Path], dataset: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks: list[str] = []
    monkeypatch.setattr(launch, "agent", lambda task, log: tasks.append(task))
    seen = preview(dataset.root, None, strategy=strategy)
    folder = ensure_agent(dataset.root, strategy=strategy)
    assert (
        folder.dest == disks[1]
        and str(folder.path) == seen.path
        and Task.from_json(tasks[0]).strategy == seen.decision.strategy
    )
    staged, summary = run(dataset.root, None, strategy=strategy)
    assert (str(staged.root), summary.strategy) == (seen.path, seen.decision.strategy)


@pytest.fixture
def small_manifests_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """A content id is looked for, however small the data set is."""
    monkeypatch.setattr(choice, "_WORTH_SHARDS", 1)


def _learned(source: Path, dest: Path) -> str | None:
    manifest = Manifest.load(source)
    learn_id(manifest, dest)
    found: str | None = vars(manifest).get("content_id")
    return found


@pytest.mark.usefixtures("small_manifests_too")
def test_a_copy_with_the_same_manifest_tells_the_content_id(dataset: Manifest, tmp_path: Path) -> None:
    copy = dlio.stage(dataset, tmp_path / "local").root
    assert _learned(dataset.root, tmp_path / "local") == dataset.content_id
    copy.rename(copy.with_name("0" * 32))
    assert _learned(dataset.root, tmp_path / "local") is None
    copy.with_name("0" * 32).rename(copy)
    copy.chmod(0o777)
    assert _learned(dataset.root, tmp_path / "local") is None


@pytest.mark.usefixtures("small_manifests_too")
def test_a_part_or_another_manifest_does_not_tell_the_content_id(dataset: Manifest, tmp_path: Path) -> None:
    dlio.stage(dataset, tmp_path / "part", strategy="partition", topology=node(0, 1))
    assert _learned(dataset.root, tmp_path / "part") is None
    copy = dlio.stage(dataset, tmp_path / "whole").root / "manifest.jsonl"
    text = copy.read_bytes()
    for other in (text[:-2] + b" \n", text + b"\n"):  # of the same size, and of another
        copy.write_bytes(other)
        assert _learned(dataset.root, tmp_path / "whole") is None
    loaded = Manifest.load(dataset.root)
    assert loaded.digest in text.decode().splitlines()[-1]
    assert replace(loaded, shards=loaded.shards[:1]).digest == ""
