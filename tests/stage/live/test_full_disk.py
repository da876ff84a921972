"""Agents on a small or full disk: what goes to make room, and what is read from the source instead."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from dlio import cli
from dlio.dataset.manifest import Manifest
from dlio.dataset.pool import ShardPool
from dlio.dataset.schema import Sample, Schema
from dlio.errors import DlioError, StorageError
from dlio.io import world
from dlio.io.arrivals import NoRoomError
from dlio.loaders.opened import open_data
from dlio.locking.claim import claimed
from dlio.locking.claim_file import Claim
from dlio.locking.owner import Owner
from dlio.stage.choose import choice
from dlio.stage.client import launch
from dlio.stage.client.filling import LiveFilling, cached
from dlio.stage.client.resolve import opened
from dlio.stage.client.start import Task, ensure_agent
from dlio.stage.copies import lease, node_cache
from dlio.stage.copies.base_folder import open_up
from dlio.stage.copies.folder import StagedFolder
from dlio.stage.copies.live_folder import FILES, LiveFolder
from dlio.stage.copies.node_cache import give_way, make_way
from dlio.stage.engine import __main__ as agent_main
from dlio.stage.engine import writing
from dlio.stage.engine.background import Background
from dlio.stage.engine.fill import Fill
from dlio.stage.engine.node import Node, within_room
from dlio.stage.meeting import meeting as meetings
from dlio.stage.run import run
from tests.helpers.arriving import through
from tests.helpers.live import background, content, eventually, is_complete, meet_in, prepared, task, working
from tests.helpers.staging import write_dataset
from tests.loaders.packing import pack_samples

SIZE, COUNT = 200_007, 16
DISK = f"size={SIZE * 12 // 1024}k"  # three quarters of the data set

Disk = Callable[[str], Path]


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Manifest:
    """Returns a data set, of whose nodes one comes."""
    meet_in(tmp_path / "meet", monkeypatch)
    for name in ("JOIN_SECONDS", "LATE_SECONDS"):
        monkeypatch.setattr(meetings, name, 0.0)
    return write_dataset(tmp_path / "source", [SIZE] * COUNT)


def fill_up(disk: Path) -> Path:
    """Takes all that is left of a disk; returns the file that does."""
    hog = disk / "hog"
    with hog.open("wb", buffering=0) as file, suppress(OSError):
        while file.write(bytes(4096)):
            pass
    return hog


def kept(node: Node) -> set[int]:
    """Returns the files that are here under their final names, after comparing them."""
    found = {number for number, file in enumerate(node.plan.listed) if node.folder.has(file)}
    for number in found:
        path = node.folder.path / node.plan.listed[number].name
        assert path.read_bytes() == content(node.plan.manifest, number)
    return found


@pytest.mark.parametrize("is_finished", [True, False])
def test_files_that_another_plan_keeps_make_way(
    source: Manifest, tmp_path: Path, small_disk: Disk, monkeypatch: pytest.MonkeyPatch, is_finished: bool
) -> None:
    """The job has another number of nodes after it was killed."""
    disk = small_disk(DISK)
    with monkeypatch.context() as patch:
        if not is_finished:
            patch.setattr(Fill, "_finish", lambda *_: None)
            patch.setattr(writing, "ONCE_BYTES", 0)
        with working(task(source.root, disk, 0, 2)) as node:
            own = {number for number in range(COUNT) if node.plan.home(number) == 0}
            eventually(lambda: node.store.present_bytes >= len(own) * SIZE)
    with working(task(source.root, disk, 1, 2)) as node:
        eventually(lambda: is_complete(node) or node.fill.problem != "")
        assert node.fill.problem == "" and kept(node) == node.plan.kept
        assert node.plan.kept >= set(range(COUNT)) - own and len(node.plan.kept) >= 11
        left = node.store.present_bytes
    with working(task(source.root, disk, 1, 2)) as node:  # the repeated job has all
        eventually(lambda: is_complete(node))
        assert node.fetching.source_bytes == 0 and node.store.present_bytes == left


def test_files_make_way_that_are_not_kept_once_all_rooms_are_known(
    source: Manifest, tmp_path: Path, small_disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until then it is not known which of the others' files a node keeps."""
    disk = small_disk(DISK)
    with working(task(source.root, disk, 0, 4)) as node:
        eventually(lambda: is_complete(node))
    # By these rooms, the node owns what it had no reason to keep before.
    monkeypatch.setattr(meetings.Meeting, "rooms", lambda self, own: (0, own, 0, 0))
    with working(task(source.root, disk, 1, 4)) as node:
        eventually(lambda: is_complete(node) or node.fill.problem != "")
        assert node.fill.problem == "" and kept(node) == node.plan.kept and len(node.plan.kept) >= 11


def test_a_smaller_cache_takes_no_more_than_it_may(source: Manifest, tmp_path: Path) -> None:
    for count in (5, 2):
        with working(task(source.root, tmp_path / "dest", cache_bytes=count * SIZE)) as node:
            eventually(lambda: is_complete(node))
            assert kept(node) == set(range(count))


def test_a_copy_that_another_job_uses_or_that_is_complete_loses_nothing(
    source: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with working(task(source.root, tmp_path / "dest", cache_bytes=5 * SIZE)) as node:
        eventually(lambda: is_complete(node))
    here = [file for file in node.plan.listed if node.folder.has(file)]
    live = LiveFolder(node.folder)
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    lease.take(node.folder)
    monkeypatch.setenv("SLURM_JOB_ID", "8")
    lease.take(node.folder)
    assert make_way(live, here, SIZE) == 4 * SIZE and all(map(node.folder.has, here))
    for room, left in ((4, 3), (1, 0)):
        assert within_room(replace(node.plan, room=room * SIZE), node.folder, None, None).room == left * SIZE
    lease.drop(node.folder.dest, "7", node.folder.copy)
    (node.folder.path / "manifest.jsonl").write_text("")
    assert make_way(live, here, SIZE) == 4 * SIZE and all(map(node.folder.has, here))
    (node.folder.path / "manifest.jsonl").unlink()
    assert make_way(live, here, SIZE) == 0 and sum(map(node.folder.has, here)) == 1


def test_a_session_that_leases_a_copy_loses_nothing_to_another_one(
    source: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if the other one, whose agent runs in its own session, has found no room for a lease."""
    monkeypatch.setattr(lease, "job_name", lambda: "")
    with working(task(source.root, tmp_path / "dest", cache_bytes=5 * SIZE)) as node:
        eventually(lambda: is_complete(node))
    ours = Owner.current()
    monkeypatch.setattr(lease, "_session", lambda: ours)
    lease.take(node.folder)
    monkeypatch.setattr(lease, "_session", lambda: replace(ours, started=1))
    for holder, count in ((replace(ours, started=2), 5), (ours, 2)):
        given = replace(task(source.root, tmp_path / "dest", cache_bytes=2 * SIZE), holder=holder)
        with working(Task.from_json(given.to_json())) as node:
            eventually(lambda: is_complete(node))
            assert len(kept(node)) == count


def test_a_process_that_counts_as_lost_removes_nothing(
    source: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = Claim(1, Owner.current(), "another")
    with working(task(source.root, tmp_path / "dest", 0, 2, cache_bytes=2 * SIZE)) as node:
        eventually(lambda: node.store.present_bytes == 2 * SIZE)
        plan = replace(node.plan, room=SIZE)
        with pytest.raises(StorageError, match="counted this one as lost"):
            within_room(plan, node.folder, lost, None)
        monkeypatch.setattr(Node, "is_ours", False)
        node._follow(replace(plan, rooms=(SIZE, 0)))
        assert len(kept(node)) == 2 and node.plan.room == 2 * SIZE


def test_a_cache_on_a_full_disk_does_not_shrink_at_each_start(source: Manifest, small_disk: Disk) -> None:
    disk = small_disk(DISK)
    given = task(source.root, disk)
    with working(given) as node:
        eventually(lambda: is_complete(node))
    hog = fill_up(disk)
    os.truncate(hog, max(0, hog.stat().st_size - 20480))
    assert background(given).fitted(*prepared(given)[1:]).room >= node.store.present_bytes > 10 * SIZE


def test_unfinished_files_make_way_first_and_their_bits_before_them(
    source: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with working(task(source.root, tmp_path / "dest", cache_bytes=2 * SIZE)) as node:
        eventually(lambda: is_complete(node))
    with monkeypatch.context() as patch:
        patch.setattr(Fill, "_finish", lambda *_: None)
        patch.setattr(writing, "ONCE_BYTES", 0)
        with working(task(source.root, tmp_path / "dest", cache_bytes=5 * SIZE)) as node:
            eventually(lambda: node.store.present_bytes == 5 * SIZE)
    live, listed, unlink = LiveFolder(node.folder), node.plan.listed, Path.unlink
    assert make_way(live, listed, 4 * SIZE) == 0
    assert len(live.begun(listed)) == 2 and len(kept(node)) == 2

    class KilledError(BaseException):
        pass

    def dies(*_: object, **__: object) -> None:
        raise KilledError

    def once(self: Path, missing_ok: bool = False) -> None:
        unlink(self, missing_ok)
        patch.setattr(Path, "unlink", dies)

    with monkeypatch.context() as patch, pytest.raises(KilledError):
        patch.setattr(Path, "unlink", once)
        make_way(live, listed, 2 * SIZE)
    assert len(live.begun(listed)) == 1 and all(live.unfinished(file).exists() for file in live.begun(listed))


def test_a_copy_that_nobody_uses_makes_way_for_a_claim(
    tmp_path: Path, small_disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "_begun", _in_this_process)
    monkeypatch.setattr(Background, "until_unneeded", lambda *_: None)
    disk = small_disk("size=1m")
    stages: tuple[Callable[[Path, Path], object], ...] = (run, run, ensure_agent)
    for number, stage in enumerate(stages):
        source = write_dataset(tmp_path / str(number), [SIZE >> number])
        stage(source.root, disk)
        folder = StagedFolder(disk, source.content_id)
        assert folder.has_manifest() and [copy.copy for copy in node_cache.copies(disk)] == [folder.copy]
        lease.drop(folder.dest, "", folder.copy)
        fill_up(disk)
    refused = pytest.raises(StorageError, match=r"cannot claim .*: No space left on device: free some space")
    with refused, claimed(folder.claims, lambda: False, give_way=give_way(folder)):
        pass


def test_nothing_makes_way_for_a_claim_that_its_own_copy_names(tmp_path: Path) -> None:
    """On a full disk, another user may have made the copy's folder before its claim, with links to what this user has.

    So a claim takes nothing of its own copy, not even one that nobody uses.
    """
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "thesis.tex").write_text("text")
    run(write_dataset(tmp_path / "source", [SIZE]).root, tmp_path / "dest")
    folder = next(iter(node_cache.copies(tmp_path / "dest")))
    lease.drop(folder.dest, "", folder.copy)
    live = LiveFolder(folder)
    live.path.mkdir()
    (live.path / FILES).symlink_to(tmp_path / "home")
    assert not give_way(folder)()
    assert folder.has_manifest() and (live.path / FILES / "thesis.tex").read_text() == "text"


def _in_this_process(text: str) -> tuple[str, str]:
    said = list[str]()
    try:
        agent_main.work(Task.from_json(text), said.append)
    except DlioError as error:
        said.append(launch.told(error))
    return said[0], ""


@pytest.fixture
def full(source: Manifest, small_disk: Disk, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Returns a folder of copies without room for a claim."""
    monkeypatch.setattr(launch, "_begun", _in_this_process)
    disk = small_disk("size=64k")
    open_up(disk)
    fill_up(disk)
    return disk


def test_a_loader_reads_the_source_while_there_is_no_room_for_an_agent(
    source: Manifest, full: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    manifest, filling = cached(source.root, full)
    assert manifest == source and filling is None
    assert "No space left on device: free some space" in caplog.text
    assert f"{source.root} is read where it is, and not cached on this node" in caplog.text
    assert caplog.text.count("cannot claim") == 1
    assert open_data(source.root, full).pool.folders[0].manifest.root == source.root
    monkeypatch.setattr(choice, "local_folders", lambda: [("tmp", full)])
    assert cached(source.root, True) == (source, None) and "no local folder has room for 3.2 MB: " in caplog.text


def test_a_part_whose_agent_has_no_room_to_start_again_is_read_from_the_source(
    source: Manifest, small_disk: Disk, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The part alone would be another order than that of the other ranks."""
    disk = small_disk(DISK)
    monkeypatch.setattr(launch, "_begun", _in_this_process)
    numbers = {
        "RANK": 0,
        "WORLD_SIZE": 2,
        "LOCAL_RANK": 0,
        "LOCAL_WORLD_SIZE": 1,
        "GROUP_RANK": 0,
        "GROUP_WORLD_SIZE": 2,
    }
    for name, value in {**numbers, "DLIO_LAUNCHER": "torchrun", "DLIO_STAGED": disk}.items():
        monkeypatch.setenv(name, str(value))
    with working(task(source.root, disk, 0, 2, strategy="partition")) as node:
        eventually(lambda: is_complete(node))
    assert node.folder.has_manifest()
    fill_up(disk)
    manifest, filling = opened(source.root)
    assert manifest == source and filling is None and "is read where it is" in caplog.text


def test_a_background_stage_without_room_is_no_failure(
    source: Manifest, full: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["stage", str(source.root), str(full), "--background"]) == 0
    out, error = capsys.readouterr()
    assert out.splitlines()[-1] == str(source.root) and error.count("No space left on device") == 1


def test_a_loader_goes_on_from_the_source_once_its_agent_cannot_start_again(
    source: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now, starts = [1000.0], list[float]()
    monkeypatch.setattr(world, "monotonic", lambda: now[0])

    def restart() -> None:
        starts.append(now[0])
        if len(starts) == 2:  # another thread does not start one, too
            read()
        raise NoRoomError("no room: free some space")

    folder = prepared(task(source.root, tmp_path / "dest"))[2]
    filling = LiveFilling(folder, source, restart, source.root)
    name = source.shards[3].files[0].name
    caplog.set_level(logging.WARNING)

    def read() -> None:
        arriving = through(filling.arrival(folder.path / name))
        assert arriving.read(17, 999) == content(source, 3)[17:1016]

    for _ in range(4):
        read()
        now[0] += 25.0
    assert len(starts) == 2 and caplog.text.count("no room") == 1


@pytest.mark.parametrize("container", ["lmdb", "tfrecord", "webdataset"])
def test_a_shard_of_several_files_is_read_at_the_source_while_there_is_no_room(tmp_path: Path, container: str) -> None:
    """Its small files, or all of it, must be whole before it can be opened on this node."""
    schema = Schema.of({"image": "bytes", "label": "int64"}, ("a",), 0)
    samples = [Sample(f"{number}", {"image": b"%d" % number * 9, "label": 0}) for number in range(9)]
    source = pack_samples(tmp_path / "packed", schema, samples, num_shards=1, name=container)
    folder, begins = prepared(task(source.root, tmp_path / "dest"))[2], list[int]()

    def restart() -> None:
        begins.append(1)
        raise NoRoomError("no room: free some space")

    filling = LiveFilling(folder, source, restart, source.root)
    with closing(ShardPool(filling.manifest, filling=filling)) as pool:
        assert [pool.read(number).fields["image"] for number in range(9)] == [each.fields["image"] for each in samples]
    assert len(begins) == 1


def test_what_another_module_prints_is_not_taken_for_an_error_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "_begun", lambda _: ("welcome to node 7", ""))
    with pytest.raises(StorageError, match=r"the agent on .*: welcome to node 7"):
        launch.agent("{}", tmp_path)
