"""Small files of a folder are staged in groups, synced together, and read again by a process that continues."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import dlio
from dlio.cli import main
from dlio.dataset.manifest import NAME, File, Manifest
from dlio.dataset.tree import Entry, encoded, fetched, groups_of, manifest_of, slices
from dlio.errors import StorageError
from dlio.io import filesystems
from dlio.stage.copies.tree import write_group
from dlio.stage.planning.job import Listeners
from dlio.stage.run import run
from dlio.stage.sources.anything import TreeFolder
from tests.helpers.agents import end_agent
from tests.helpers.forked import Forked
from tests.helpers.live import are_patient, meet_in
from tests.helpers.staging import folder_of
from tests.helpers.trees import make_tree, snapshot
from tests.helpers.users import open_to_all, unprivileged


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return make_tree(tmp_path / "shared" / "env", small=40)


def group_of(tree: Path, name: str) -> int:
    """Returns the size of the group that a file comes with."""
    shards = TreeFolder(tree).manifest.shards
    return next(shard.num_bytes for shard in shards if any(file.name == name for file in shard.files))


def test_small_files_that_a_loss_of_power_has_emptied_are_copied_again(tree: Path, tmp_path: Path) -> None:
    staged = dlio.stage(tree, tmp_path / "local")
    (staged.root / NAME).unlink()
    lost = staged.path / "small-007"
    lost.write_bytes(bytes(lost.stat().st_size))
    again, summary = run(tree, tmp_path / "local")
    assert summary.source_bytes == group_of(tree, "env/small-007")
    assert snapshot(again.path) == snapshot(tree) and dlio.verify(again) == []


@pytest.mark.parametrize("group", [0, 2])
def test_a_killed_copy_of_small_files_goes_on_with_whole_groups(tree: Path, tmp_path: Path, group: int) -> None:
    for number in range(1100):  # three groups
        (tree / f"more-{number}").write_bytes(b"%d" % number)
    reported = list[int]()

    def report(more: int) -> None:
        reported.append(more)
        if len(reported) == group + 2:
            os.kill(os.getpid(), 9)

    assert Forked(lambda: run(tree, tmp_path / "local", listeners=Listeners(report=report))).wait() != 0
    assert not list((tmp_path / "local").glob(f"dlio/*/{NAME}"))
    staged, summary = run(tree, tmp_path / "local")
    assert summary.source_bytes < staged.num_bytes and snapshot(staged.path) == snapshot(tree)


def test_all_small_files_are_synced_at_once(tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced, singly = list[int](), list[int]()
    monkeypatch.setattr(filesystems, "_TELL", {filesystems.filesystem_of(tmp_path).type})
    monkeypatch.setattr(filesystems, "syncfs", synced.append)
    monkeypatch.setattr(os, "fsync", singly.append)
    staged = dlio.stage(tree, tmp_path / "local")
    assert len(synced) == 1 and len(singly) < 30 and snapshot(staged.path) == snapshot(tree)


def test_a_group_whose_digests_a_manifest_tells_is_fetched_file_by_file(tree: Path, tmp_path: Path) -> None:
    staged = dlio.stage(tree, tmp_path / "local")
    again = dlio.stage(Manifest.load(staged.root), tmp_path / "other")
    assert snapshot(again.path) == snapshot(tree)


def test_two_agents_list_nothing_again(
    tree: Path, tmp_path: Path, slow_source: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of the processes that start them lists the folder for both, and one of those that wait."""
    lists, folders = tmp_path / "lists", ["/env", "/env/bin", "/env/empty", "/env/empty/inner"]
    mounted = slow_source(tree.parent, "--lists", str(lists)) / "env"
    meet_in(tmp_path / "meet", monkeypatch)
    are_patient(monkeypatch)
    monkeypatch.delenv("DLIO_LAUNCHER")

    def stage(node: int, option: str) -> None:
        ranks = {"RANK": node, "LOCAL_RANK": 0, "GROUP_RANK": node}
        sizes = {"WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 1, "GROUP_WORLD_SIZE": 2}
        os.environ |= {name: str(value) for name, value in (ranks | sizes).items()}
        assert main(["stage", str(mounted), str(tmp_path / f"node{node}"), option, "--quiet"]) == 0

    for times, option in enumerate(("--background", "--wait"), start=1):
        children = [Forked(partial(stage, node, option)) for node in range(2)]
        assert [child.wait() for child in children] == [0, 0]
        assert sorted(lists.read_text().splitlines()) == sorted(times * folders)
    for node in range(2):
        (copy,) = (Manifest.load(path) for path in (tmp_path / f"node{node}" / "dlio").glob("*/manifest.jsonl"))
        end_agent(folder_of(copy))
        assert snapshot(copy.path) == snapshot(tree)


def test_hard_links_become_files_and_large_holes_stay_holes(tmp_path: Path) -> None:
    (tree := tmp_path / "shared" / "env").mkdir(parents=True)
    (tree / "one").write_bytes(b"the same")
    (tree / "other").hardlink_to(tree / "one")
    with (tree / "sparse").open("wb") as file:
        file.truncate(64 << 20)
        file.seek(32 << 20)
        file.write(b"middle")
    staged = dlio.stage(tree, tmp_path / "local").path
    assert snapshot(staged) == snapshot(tree)
    assert (staged / "one").stat().st_nlink == 1 and not (staged / "one").samefile(staged / "other")
    assert (staged / "sparse").stat().st_blocks * 512 < 16 << 20


@pytest.mark.parametrize("name", ["env/small-007", "env/x"])
def test_a_file_that_cannot_be_read_is_named(tree: Path, tmp_path: Path, name: str) -> None:
    dest = open_to_all(tmp_path)
    for path in (tree.parent, tree):
        path.chmod(0o755)
    (tree / "x").chmod(0o444)
    (tree.parent / name).chmod(0)
    with unprivileged(), pytest.raises(StorageError, match=f"cannot read .*{name}: Permission denied"):
        dlio.stage(tree, dest)
    assert not list(dest.glob(f"dlio/*/{NAME}"))


def test_a_group_that_changes_while_it_is_read_ends_the_copy(tree: Path, tmp_path: Path) -> None:
    """Its files were right when they were listed, and some were read before another one changed."""
    source = TreeFolder(tree)
    group = next(
        file for shard in fetched(source.manifest) for file in shard if file.name in groups_of(source.manifest)
    )
    source.read_range(group, 0, target := memoryview(bytearray(group.num_bytes)))
    last = groups_of(source.manifest)[group.name][-1]
    (tree.parent / last.name).write_bytes(os.urandom(last.num_bytes))
    with pytest.raises(StorageError, match=f"{re.escape(last.name)} changed while it was copied: stage again"):
        source.read_range(group, 0, target)
    with pytest.raises(StorageError, match="changed while it was copied"):
        run(source, tmp_path / "local")
    assert not list((tmp_path / "local").glob(f"dlio/*/{NAME}"))


@given(sizes=st.lists(st.sampled_from([0, 1, 4000, 65536, 65537, 3 << 20]), max_size=1200))
def test_groups_are_bounded_and_hold_each_file_once(sizes: list[int]) -> None:
    entries = [Entry("folder", "env", 0o755, 0, 0)]
    entries += [Entry("file", f"env/{number}", 0o644, 0, 0, size) for number, size in enumerate(sizes)]
    made = manifest_of(entries, encoded(entries, "env"), Path("/shared"))
    assert sorted(file.num_bytes for shard in made.shards[1:] for file in shard.files) == sorted(sizes)
    whole, groups = fetched(made), groups_of(made)
    assert all(len(group) <= 512 and sum(file.num_bytes for file in group) <= 4 << 20 for group in groups.values())
    assert all(file.num_bytes <= 65536 for group in groups.values() for file in group)
    assert sum(file.num_bytes for shard in whole for file in shard) == sum(sizes) + made.shards[0].num_bytes


def test_a_late_process_never_writes_into_a_file_that_is_there(tmp_path: Path) -> None:
    """It counted as lost, and another one has published the copy: its readers see a whole file at each moment."""
    (tmp_path / "env").mkdir()
    (here := tmp_path / "env" / "x").write_bytes(b"whole")
    with here.open("rb") as reader:
        write_group(tmp_path, [File("env/x", 5, "")], memoryview(b"later"), tmp_path / "aside")
        assert (reader.read(), here.read_bytes()) == (b"whole", b"later")
    assert not (tmp_path / "aside").exists()


@given(st.lists(st.integers(0, 5), min_size=1, max_size=8), st.data())
def test_any_range_of_a_group_is_made_of_the_ranges_of_its_files(sizes: list[int], data: st.DataObject) -> None:
    group = [File(str(number), size, "") for number, size in enumerate(sizes)]
    whole = bytes(range(1, 1 + sum(sizes)))
    content = {file.name: bytes(part) for file, _, part in slices(group, memoryview(whole))}
    assert [len(content[file.name]) for file in group] == sizes and b"".join(content.values()) == whole
    begin = data.draw(st.integers(0, len(whole)))
    target = memoryview(bytearray(data.draw(st.integers(0, len(whole) - begin))))
    for file, first, part in slices(group, target, begin):
        part[:] = content[file.name][first : first + len(part)]
    assert bytes(target) == whole[begin : begin + len(target)]
