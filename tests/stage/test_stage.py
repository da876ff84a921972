"""Staging as a user sees it: the resulting files, and the errors."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import dlio
from dlio import cli
from dlio.dataset.manifest import NAME, Manifest
from dlio.errors import DigestError, ManifestError, StorageError, UsageError
from dlio.stage.planning import flows
from dlio.stage.planning.job import Job
from dlio.stage.run import preview, run
from dlio.stage.sources import source_of
from dlio.stage.strategies import load
from tests.helpers.forked import Forked
from tests.helpers.slow_source import bytes_read
from tests.helpers.staging import MiB, assert_staged, node, write_dataset


def test_stage_is_the_function_though_it_is_also_a_package() -> None:
    code = "import dlio.stage.run, dlio; from dlio.stage import stage; assert dlio.stage is stage"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_every_byte_arrives_once_and_the_second_stage_copies_none(dataset: Manifest, tmp_path: Path) -> None:
    staged, first = run(dataset.root, tmp_path / "local", strategy="replicate")
    assert staged.root == tmp_path / "local" / "dlio" / dataset.content_id
    assert_staged(staged, dataset)
    assert not any(path.is_file() for path in (tmp_path / "local" / "dlio" / ".claims").rglob("*"))
    assert (first.source_bytes, first.copied_bytes) == (dataset.num_bytes, dataset.num_bytes)
    again, second = run(dataset.root, tmp_path / "local", strategy="replicate")
    assert again == staged
    assert again.root == staged.root
    assert (second.source_bytes, second.copied_bytes) == (0, 0)


def test_a_staged_copy_can_be_staged_again(dataset: Manifest, tmp_path: Path) -> None:
    staged = dlio.stage(dataset, tmp_path / "a")
    assert_staged(dlio.stage(staged, tmp_path / "b"), dataset)
    assert dlio.stage(staged, tmp_path / "a").root == staged.root


def test_an_empty_data_set(tmp_path: Path) -> None:
    source = write_dataset(tmp_path / "source", [])
    assert_staged(dlio.stage(source, tmp_path / "local"), source)


def test_progress_adds_up_to_the_data_set(dataset: Manifest, tmp_path: Path) -> None:
    seen: list[int] = []
    dlio.stage(dataset, tmp_path / "local", report=seen.append)
    assert sum(seen) == dataset.num_bytes


def test_holes_stay_holes(tmp_path: Path) -> None:
    path = tmp_path / "source" / "shard-00000.bin"
    write_dataset(path.parent, [5])
    with path.open("r+b") as file:
        file.truncate(64 * MiB)
        file.seek(32 * MiB)
        file.write(b"data")
    from dlio.dataset.manifest import File, Shard
    from dlio.io.files import digest_file

    shard = Shard("shard-00000", 1, (File(path.name, 64 * MiB, digest_file(path)),))
    source = Manifest("lmdb", Manifest.load(path.parent).schema, (shard,), {}, path.parent)
    source.save(path.parent)
    staged = dlio.stage(source, tmp_path / "local")
    assert_staged(staged, source)
    assert (staged.root / path.name).stat().st_blocks * 512 <= 8 * MiB


def test_a_missing_staged_file_is_brought_back_alone(dataset: Manifest, tmp_path: Path) -> None:
    staged = dlio.stage(dataset, tmp_path / "local")
    (staged.root / dataset.shards[2].files[0].name).unlink()
    _, summary = run(dataset, tmp_path / "local", strategy="replicate")
    assert summary.copied_bytes == dataset.shards[2].num_bytes
    assert_staged(staged, dataset)


def test_the_nodes_begin_at_different_files(dataset: Manifest, tmp_path: Path) -> None:
    def order(rank: int, count: int) -> list[int]:
        return load("replicate").plan(Job(source_of(dataset), tmp_path, node(rank, count))).order()

    assert [order(rank, 7)[0] for rank in range(7)] == list(range(7))
    assert sorted(order(3, 5)) == list(range(7))


def test_64_processes_copy_once(dataset: Manifest, tmp_path: Path) -> None:
    log = tmp_path / "log"

    def child() -> None:
        staged, summary = run(dataset, tmp_path / "local", strategy="replicate")
        assert (staged.root / NAME).exists()
        with log.open("a") as file:
            file.write(f"{summary.copied_bytes}\n")

    children = [Forked(child) for _ in range(64)]
    assert [child.wait() for child in children] == [0] * 64
    assert sorted(map(int, log.read_text().split())) == [0] * 63 + [dataset.num_bytes]
    assert_staged(dlio.stage(dataset, tmp_path / "local"), dataset)


# --- what cannot be ---------------------------------------------------------------------------------------------------


def test_unknown_strategy(dataset: Manifest, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"not a strategy: expected .*replicate"):
        dlio.stage(dataset, tmp_path / "local", strategy="teleport")


def test_no_data_set(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match="does not exist"):
        dlio.stage(tmp_path / "none", tmp_path / "local")


def test_same_size_but_other_content(dataset: Manifest, tmp_path: Path) -> None:
    damaged = dataset.root / "shard-00002.bin"
    damaged.write_bytes(bytes(damaged.stat().st_size))
    with pytest.raises(DigestError, match=r"shard-00002.bin is damaged: expected the digest xxh3-128:\w+, found"):
        dlio.stage(dataset, tmp_path / "local")
    assert not list((tmp_path / "local").rglob(NAME))
    assert not list((tmp_path / "local").rglob("*00002.bin"))


def test_a_source_of_another_size(dataset: Manifest, tmp_path: Path) -> None:
    with (dataset.root / "shard-00004.bin").open("ab") as file:
        file.write(b"x")
    with pytest.raises(StorageError, match="bytes, not"):
        dlio.stage(dataset, tmp_path / "local")


def test_a_source_that_changes_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flows, "THREADS", 1)
    source = write_dataset(tmp_path / "source", [20 * MiB])
    path = source.root / "shard-00000.bin"

    with pytest.raises(StorageError, match="changed while it was copied"):
        dlio.stage(source, tmp_path / "local", report=lambda _: os.utime(path, ns=(1, 1)))
    assert_staged(dlio.stage(source, tmp_path / "local"), source)


def test_a_missing_source_file(dataset: Manifest, tmp_path: Path) -> None:
    (dataset.root / "shard-00003.bin").unlink()
    with pytest.raises(StorageError, match=r"cannot read .*shard-00003.bin: No such file"):
        dlio.stage(dataset, tmp_path / "local")


def test_a_folder_that_is_not_ours_is_left_alone(dataset: Manifest, tmp_path: Path) -> None:
    folder = tmp_path / "local" / "dlio" / dataset.content_id
    folder.mkdir(parents=True)
    (folder / "thesis.tex").touch()
    with pytest.raises(StorageError, match="marker"):
        dlio.stage(dataset, tmp_path / "local")
    assert (folder / "thesis.tex").exists()


def test_no_room_is_known_before_the_first_byte(
    large_dataset: Manifest, tmp_path: Path, small_disk: Callable[[str], Path]
) -> None:
    disk = small_disk("size=8m")
    seen: list[int] = []
    with pytest.raises(StorageError, match=r"\(tmpfs at .*\) has [\d,]+ bytes free and 20,971,.* are needed") as caught:
        dlio.stage(large_dataset, disk, report=seen.append)
    assert caught.value.exit_code == 4
    assert seen == []
    assert not any(path.name.startswith("shard") for path in disk.rglob("*"))


def test_a_disk_that_fills_up_meanwhile_is_given_back(
    large_dataset: Manifest, tmp_path: Path, small_disk: Callable[[str], Path]
) -> None:
    disk = small_disk("size=24m")
    hog = disk / "hog"

    def fill(_: int) -> None:
        if not hog.exists():
            hog.write_bytes(bytes(10 * MiB))

    with pytest.raises(StorageError, match=r"No space left.*free some space") as caught:
        dlio.stage(large_dataset, disk, report=fill)
    assert caught.value.exit_code == 4
    assert not list(disk.glob("dlio/[!.]*"))
    hog.unlink()
    assert_staged(dlio.stage(large_dataset, disk), large_dataset)


def test_a_full_inode_table(tmp_path: Path, small_disk: Callable[[str], Path]) -> None:
    source = write_dataset(tmp_path / "source", [10] * 60)
    with pytest.raises(StorageError, match="more files"):
        dlio.stage(source, small_disk("size=8m,nr_inodes=50"))


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
def test_no_permission(dataset: Manifest, tmp_path: Path) -> None:
    (tmp_path / "locked").mkdir(mode=0o700)
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o1777)
    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_uid == 0 and not folder.stat().st_mode & 0o001:
            folder.chmod(folder.stat().st_mode | 0o055)

    def child() -> None:
        os.setuid(65534)
        with pytest.raises(StorageError, match="check the owner") as caught:
            dlio.stage(dataset, tmp_path / "locked")
        assert caught.value.exit_code == 4
        with pytest.raises(StorageError, match=r"cannot read .*00001.bin.*check the owner"):
            dlio.stage(dataset, tmp_path / "open")

    (dataset.root / "shard-00001.bin").chmod(0o600)
    assert Forked(child).wait() == 0


def test_as_open_to_others_as_the_folder_given(dataset: Manifest, tmp_path: Path) -> None:
    (tmp_path / "tmp").mkdir()
    (tmp_path / "tmp").chmod(0o1777)
    dlio.stage(dataset, tmp_path / "tmp")
    assert (tmp_path / "tmp" / "dlio").stat().st_mode & 0o7777 == 0o1777


# --- sources that are slow, shared or failing -------------------------------------------------------------------------


def test_a_shared_destination_is_refused_unless_allowed(
    dataset: Manifest, tmp_path: Path, slow_source: Callable[..., Path]
) -> None:
    mounted = slow_source(dataset.root)
    with pytest.raises(UsageError, match=r"lies on fuse.slowsource at .*other machines"):
        dlio.stage(dataset, mounted / "local")
    with pytest.raises(StorageError, match="Read-only file system"):
        dlio.stage(dataset, mounted / "local", allow_shared=True)


def test_the_source_is_read_once(dataset: Manifest, tmp_path: Path, slow_source: Callable[..., Path]) -> None:
    mounted = slow_source(dataset.root)
    staged, _ = run(mounted, tmp_path / "local", strategy="replicate")
    assert_staged(staged, dataset)
    assert bytes_read(mounted) <= 1.001 * dataset.num_bytes + (dataset.root / NAME).stat().st_size


def test_an_input_error_of_the_source(dataset: Manifest, tmp_path: Path, slow_source: Callable[..., Path]) -> None:
    with pytest.raises(StorageError, match=r"cannot read .*shard-00004.bin: Input/output error") as caught:
        dlio.stage(slow_source(dataset.root, "--fail", "00004"), tmp_path / "local")
    assert caught.value.exit_code == 4
    assert not list((tmp_path / "local").rglob("*00004*"))
    assert_staged(dlio.stage(dataset, tmp_path / "local"), dataset)


@pytest.mark.parametrize("below", [".", "local/nvme", "../source"])
def test_a_destination_in_the_data_set_itself_is_refused(dataset: Manifest, below: str) -> None:
    with pytest.raises(UsageError, match=r"is inside the data set .*: stage to a folder outside it"):
        dlio.stage(dataset, dataset.root / below)
    with pytest.raises(UsageError, match="is inside the data set"):
        preview(dataset, dataset.root / below, strategy="auto")
    assert not (dataset.root / "dlio").exists()


def test_staging_the_staged_copy_once_more_finds_it(dataset: Manifest, tmp_path: Path) -> None:
    staged = dlio.stage(dataset, tmp_path / "local")
    assert dlio.stage(staged, tmp_path / "local").root == staged.root


def test_clean_says_when_there_is_nothing_to_remove(
    dataset: Manifest, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["clean", str(tmp_path / "nope")]) == 0
    assert capsys.readouterr().out == f"removed nothing: no data set is staged in {tmp_path / 'nope'}\n"
    staged = dlio.stage(dataset, tmp_path / "local")
    assert cli.main(["clean", str(tmp_path / "local"), "--job", "another"]) == 0
    assert f"kept {staged.root}: used by process" in capsys.readouterr().out
    assert cli.main(["clean", str(tmp_path / "local")]) == 0
    assert capsys.readouterr().out == f"removed {staged.root}\n"


def test_the_packages_modules_are_imported_as_its_docstring_says() -> None:
    code = "import dlio; from dlio.stage.upkeep import clean; assert clean.clean is dlio.clean"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert "from dlio.stage.copies import\nnode_cache" in (sys.modules["dlio.stage"].__doc__ or "")
