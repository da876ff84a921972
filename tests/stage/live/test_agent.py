"""Agents: what they read from the source, what they leave when they are killed, and what they say when they cannot."""

from __future__ import annotations

import errno
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import dlio
from dlio.dataset.manifest import File, Manifest
from dlio.errors import StorageError
from dlio.locking import claim_file
from dlio.locking.claim import alone, claimed
from dlio.locking.owner import Owner
from dlio.stage.cache.base_folder import open_up
from dlio.stage.cache.clean import clean
from dlio.stage.cache.folder import StagedFolder
from dlio.stage.job import NO_OPTIONS
from dlio.stage.live import start
from dlio.stage.live.agent import __main__ as agent_main
from dlio.stage.live.agent import fill, meeting, passing
from dlio.stage.live.agent import node as agent_node
from dlio.stage.live.agent.node import LetGo, Node
from dlio.stage.live.blocks import Blocks
from dlio.stage.live.client import connect
from dlio.stage.live.filling import find_filling
from dlio.stage.live.folder import AgentRecord, LiveFolder
from dlio.stage.live.start import ensure_agent, stager
from dlio.stage.live.status import status
from dlio.stage.live.wire import Origin
from dlio.stage.run import run
from dlio.stage.transfer.source import MountedFolder
from tests.helpers.live import client_of, content, eventually, is_complete, meet_in, nodes, task, working
from tests.helpers.staging import MiB, assert_staged, damaged_files, flip, write_dataset

_HOLD = """
import sys
from pathlib import Path
from dlio.locking.claim import alone
from dlio.stage.cache.folder import StagedFolder
with alone(StagedFolder(Path(sys.argv[1]), sys.argv[2]).claims / "agent", "agent"):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def source(tmp_path: Path) -> Manifest:
    """Sixteen shards of 3 MiB, an empty and a tiny one."""
    return write_dataset(tmp_path / "source", [3 * MiB + 7] * 16 + [0, 1])


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Makes each read of the source take 20 ms, and notes its offset and length."""
    reads: list[tuple[int, int]] = []
    plain = MountedFolder.read_range

    def read_range(self: MountedFolder, file: object, offset: int, target: memoryview) -> None:
        time.sleep(0.02)
        reads.append((offset, len(target)))
        plain(self, file, offset, target)  # type: ignore[arg-type]

    monkeypatch.setattr(MountedFolder, "read_range", read_range)
    return reads


def source_bytes(found: list[Node]) -> int:
    return sum(node.stat()["source_bytes"] for node in found)


@pytest.mark.parametrize("strategy", ["replicate", "broadcast", "partition"])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_each_byte_is_read_from_the_source_once(
    source: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int, strategy: str
) -> None:
    """While loaders on all nodes read at random, which is right from the first byte on."""
    meet_in(tmp_path / "meet", monkeypatch)
    with nodes(source.root, tmp_path, count, strategy=strategy) as found:
        for number in range(0, 16, 3):
            with closing(client_of(found[number % count])) as client:
                data = bytearray(40_000)
                client.read(number, [(5, 20_005), (2 * MiB, 2 * MiB + 20_000)], memoryview(data))
                whole = content(source, number)
                assert data == whole[5:20_005] + whole[2 * MiB : 2 * MiB + 20_000]
        for node in found:
            eventually(lambda node=node: is_complete(node))  # type: ignore[misc]
        assert source.num_bytes <= source_bytes(found) <= 1.01 * source.num_bytes
    for node in found:
        assert damaged_files(node.folder.path, source) == []
        assert Manifest.load(node.folder.path).content_id == source.content_id


def test_a_part_reads_the_others_from_its_peers(
    source: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    meet_in(tmp_path / "meet", monkeypatch)
    with nodes(source.root, tmp_path, 2, strategy="partition") as found, closing(client_of(found[0])) as client:
        eventually(lambda: all(map(is_complete, found)))
        far = next(number for number in range(16) if number not in found[0].plan.kept)
        data = bytearray(3 * MiB + 7)
        assert client.need(far, [(0, 1)]) is None
        assert client.read(far, [(0, len(data))], memoryview(data)) == Origin.PEER
        assert data == content(source, far)
        assert source_bytes(found) == source.num_bytes


@pytest.mark.parametrize(("count", "percent"), [(1, 10), (1, 90), (2, 25), (4, 50)])
def test_small_caches_keep_together_as_much_as_they_may_and_the_rest_is_read_each_time(
    source: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int, percent: int
) -> None:
    meet_in(tmp_path / "meet", monkeypatch)
    size = 3 * MiB + 7
    room = 16 * percent // 100 * size + 10
    with nodes(source.root, tmp_path, count, cache_bytes=room) as found:
        for node in found:
            eventually(lambda node=node: is_complete(node))  # type: ignore[misc]
        assert source_bytes(found) <= 1.01 * source.num_bytes
        for _ in range(2):
            before = source_bytes(found)
            for number in range(16):
                with closing(client_of(found[number % count])) as client:
                    data = bytearray(size)
                    client.read(number, [(0, size)], memoryview(data))
                    assert data == content(source, number)
            hits = 16 - (source_bytes(found) - before) // size
            assert hits == min(16, count * (16 * percent // 100))


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[threading.Event, list[str]]]:
    """An event that reads of the source wait for, but for the last shards; and the names of the files read."""
    opened, names = threading.Event(), []
    plain = MountedFolder.read_range

    def read_range(self: MountedFolder, file: File, offset: int, target: memoryview) -> None:
        names.append(file.name)
        if file.name != "shard-00014.bin":
            assert opened.wait(60)
        plain(self, file, offset, target)

    monkeypatch.setattr(MountedFolder, "read_range", read_range)
    yield opened, names
    opened.set()


def test_what_is_asked_for_is_not_held_up_by_the_rest(
    source: Manifest, tmp_path: Path, gate: tuple[threading.Event, list[str]]
) -> None:
    with working(task(source.root, tmp_path / "dest")) as node, closing(client_of(node)) as client:
        eventually(lambda: len(gate[1]) >= 4)  # all threads of the background wait
        assert client.need(14, [(MiB, MiB + 9)]) == Origin.SOURCE
        gate[0].set()
        eventually(lambda: is_complete(node))


def test_the_background_follows_the_order_that_loaders_tell(
    source: Manifest, tmp_path: Path, gate: tuple[threading.Event, list[str]]
) -> None:
    with working(task(source.root, tmp_path / "dest")) as node, closing(client_of(node)) as client:
        eventually(lambda: len(gate[1]) >= 4)
        client.order(list(range(15, -1, -1)))
        gate[0].set()
        eventually(lambda: is_complete(node))
        assert gate[1].index("shard-00015.bin") < gate[1].index("shard-00008.bin")


def test_damaged_bytes_are_fetched_again(
    source: Manifest, tmp_path: Path, gate: tuple[threading.Event, list[str]]
) -> None:
    """A loader found a checksum wrong: the agent reads the blocks from the source once more."""
    with working(task(source.root, tmp_path / "dest")) as node, closing(client_of(node)) as client:
        eventually(lambda: len(gate[1]) >= 4)
        client.need(14, [(0, 100)])
        unfinished = LiveFolder(node.folder).unfinished(node.plan.listed[14])
        with unfinished.open("r+b") as file:
            file.write(b"damaged")
        client.bad(14, [(0, 100)])
        assert unfinished.read_bytes()[:100] == content(source, 14)[:100]
        gate[0].set()
        client.need(14)
        assert (node.folder.path / "shard-00014.bin").read_bytes() == content(source, 14)


def test_bytes_that_were_damaged_on_the_way_are_fetched_again(
    source: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, damaged = MountedFolder.read_range, []

    def read_range(self: MountedFolder, file: object, offset: int, target: memoryview) -> None:
        plain(self, file, offset, target)  # type: ignore[arg-type]
        if not damaged:
            damaged.append(offset)
            target[:1] = bytes([target[0] ^ 1])

    monkeypatch.setattr(MountedFolder, "read_range", read_range)
    with working(task(source.root, tmp_path / "dest")) as node:
        eventually(lambda: is_complete(node))
        assert damaged and damaged_files(node.folder.path, source) == []


def test_a_damaged_source_is_named(source: Manifest, tmp_path: Path) -> None:
    flip(source.root / "shard-00002.bin")
    with working(task(source.root, tmp_path / "dest")) as node, closing(client_of(node)) as client:
        with pytest.raises(StorageError, match=r"shard-00002\.bin is damaged"):
            client.need(2)
        assert client.need(4) in Origin
        assert not (node.folder.path / "shard-00002.bin").exists()


def test_a_source_that_is_gone_is_named_and_read_again_when_it_is_back(source: Manifest, tmp_path: Path) -> None:
    lost = source.root / "shard-00001.bin"
    lost.rename(tmp_path / "away")
    with working(task(source.root, tmp_path / "dest")) as node, closing(client_of(node)) as client:
        with pytest.raises(StorageError, match=r"shard-00001\.bin"):
            client.need(1, [(0, 5)])
        (tmp_path / "away").rename(lost)
        eventually(lambda: is_complete(node))


def test_a_source_that_hangs_is_named(source: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = threading.Event()
    monkeypatch.setattr(MountedFolder, "read_range", lambda *_: answers.wait(20))
    monkeypatch.setattr(fill, "GIVE_UP_SECONDS", 0.5)
    with working(task(source.root, tmp_path / "dest")) as node, closing(client_of(node)) as client:
        with pytest.raises(StorageError, match=r"shard-00001\.bin has not been read for"):
            client.need(1, [(0, 5)])
        answers.set()


def test_a_source_that_hangs_while_it_is_passed_through_is_named(
    source: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers, asked = threading.Event(), []
    plain = MountedFolder.read_range

    def read_range(self: MountedFolder, file: File, offset: int, target: memoryview) -> None:
        if file.name == "shard-00009.bin":
            asked.append(offset)
            answers.wait(60)
        plain(self, file, offset, target)

    monkeypatch.setattr(MountedFolder, "read_range", read_range)
    monkeypatch.setattr(passing, "GIVE_UP_SECONDS", 0.5)
    given = task(source.root, tmp_path / "dest", cache_bytes=4 * MiB)
    with working(given) as node, closing(client_of(node)) as client:
        try:
            with pytest.raises(StorageError, match=r"source/shard-00009\.bin has sent nothing for"):
                client.read(9, [(0, 5)], memoryview(bytearray(5)))
            assert asked == [0]
            data = bytearray(5)
            assert client.read(8, [(0, 5)], memoryview(data)) == Origin.SOURCE and data == content(source, 8)[:5]
        finally:
            answers.set()


class _Exited(BaseException):
    """Instead of the end of this process."""


def test_the_claim_is_held_as_long_as_a_thread_may_write(
    source: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers, states = threading.Event(), []
    monkeypatch.setattr(MountedFolder, "read_range", lambda *_: answers.wait(60))
    job, plan, folder = task(source.root, tmp_path / "dest").prepared()
    open_up(folder.dest)

    def ready() -> Node:
        node = Node(task(source.root, tmp_path / "dest"), job, plan, folder)
        node.begin()
        monkeypatch.setattr(node, "until_complete", ended)
        return node

    def ended() -> None:
        raise LetGo

    def end(code: int) -> None:
        states.append(claim_file.latest(folder.claims))
        raise _Exited

    monkeypatch.setattr(os, "_exit", end)
    try:
        with pytest.raises(_Exited):
            agent_main._fill_and_serve(ready, job, plan, folder)
    finally:
        answers.set()
    assert [claim.state for claim in states] == ["held"]


def test_what_a_full_disk_cannot_take_is_passed_through(
    source: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def pwrite(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", pwrite)
    with working(task(source.root, tmp_path / "dest")) as node, closing(client_of(node)) as client:
        assert client.need(1, [(0, 5)]) is None
        data = bytearray(3 * MiB + 7)
        assert client.read(1, [(0, len(data))], memoryview(data)) == Origin.SOURCE
        assert data == content(source, 1)
        assert "No space left" in client.stat()["nodes"][0]["waiting_for"]


def test_a_lost_node_is_gone_round(source: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its shards are read from the source by others; what it has read is read once more at most."""
    meet_in(tmp_path / "meet", monkeypatch)
    with nodes(source.root, tmp_path, 2) as found:
        eventually(lambda: found[1].store.present_bytes > 0)
        found[1].fill.stop()
        found[1].server.close()
        eventually(lambda: is_complete(found[0]))
        assert damaged_files(found[0].folder.path, source) == []
        found[1].close()


def test_the_part_of_a_node_that_comes_late_is_left_to_it(
    source: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But for what somebody waits for."""
    meet_in(tmp_path / "meet", monkeypatch)
    monkeypatch.setattr(meeting, "JOIN_SECONDS", 0.0)
    with working(task(source.root, tmp_path / "first", 0, 2)) as first, closing(client_of(first)) as client:
        own = [number for number in range(16) if first.plan.owner(number) == 0]
        far = next(number for number in range(16) if number not in own)
        assert client.need(far, [(0, 5)]) == Origin.SOURCE
        eventually(lambda: all(map(first.store.is_finished, own)))
        with working(task(source.root, tmp_path / "second", 1, 2)) as second:
            eventually(lambda: is_complete(first) and is_complete(second))
            assert source.num_bytes <= source_bytes([first, second]) <= source.num_bytes + MiB


def test_a_node_that_comes_again_gets_its_part_from_the_others(
    source: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    meet_in(tmp_path / "meet", monkeypatch)
    with nodes(source.root, tmp_path, 2) as found:
        eventually(lambda: all(map(is_complete, found)))
        again = tmp_path / "again"
        with working(task(source.root, again, 1, 2)) as late:
            eventually(lambda: is_complete(late))
            assert late.stat()["source_bytes"] == 0


def test_plain_stage_goes_on_with_what_an_agent_left(
    source: Manifest, tmp_path: Path, slow: list[tuple[int, int]]
) -> None:
    with working(task(source.root, tmp_path / "dest")) as node:
        eventually(lambda: node.store.present_bytes > 10 * MiB)
        node.fill.stop()
        present = node.store.present_bytes
    staged, summary = run(source.root, tmp_path / "dest")
    assert_staged(staged, source)
    assert summary.source_bytes < source.num_bytes - present / 2


def test_handing_over_leaves_the_files_that_loaders_have_open(tmp_path: Path) -> None:
    file = File("a.bin", 100_000, "sha256:" + "0" * 64)
    live = LiveFolder(StagedFolder(tmp_path, "0" * 32))
    (live.path / "files").mkdir(parents=True)
    live.unfinished(file).write_bytes(bytes(range(250)) * 400)
    Blocks.create(live.blocks(file), file.num_bytes).set(0, 65536)
    with live.unfinished(file).open("r+b") as opened:
        live.hand_over(tmp_path / "aside", [file])
        handed = tmp_path / "aside" / "a.bin"
        assert handed.read_bytes() == (bytes(range(250)) * 400)[:65536]
        assert len(opened.read()) == file.num_bytes
        opened.write(b"late")
        assert handed.stat().st_size == 65536


@pytest.fixture
def ended() -> Iterator[list[StagedFolder]]:
    """Folders whose agents are ended after the test."""
    folders: list[StagedFolder] = []
    yield folders
    for folder in folders:
        LiveFolder(folder).end_agent()


def _announced(folder: StagedFolder, node: str) -> LiveFolder:
    """Returns the folder of a copy with the announcement of an agent that cannot be looked at from here."""
    live = LiveFolder(folder)
    live.make()
    live.announce(AgentRecord(replace(Owner.current(), node=node), ("127.0.0.1", 9), 0, 1))
    return live


def test_an_agent_of_an_earlier_boot_is_over(source: Manifest, tmp_path: Path, ended: list[StagedFolder]) -> None:
    folder = task(source.root, tmp_path / "dest").prepared()[2]
    open_up(folder.dest)
    ended.append(folder)
    folder.path.mkdir(parents=True, mode=0o700)
    host = Owner.current().node.partition("/")[0]
    live = _announced(folder, f"{host}/another-boot")
    assert live.agent() is None
    assert ensure_agent(source.root, tmp_path / "dest") == folder
    eventually(folder.has_manifest)
    assert damaged_files(folder.path, source) == []


def test_an_agent_of_another_container_lives_while_its_heart_beats(tmp_path: Path) -> None:
    folder = StagedFolder(tmp_path, "copy")
    folder.path.mkdir(parents=True)
    live = _announced(folder, "elsewhere/boot")
    assert live.agent() is not None
    os.utime(live.path / "agent.json", (0, 0))
    assert live.agent() is None
    live.beat()
    assert live.agent() is not None


def test_a_second_starter_becomes_the_agent_when_the_first_ends(
    source: Manifest, tmp_path: Path, ended: list[StagedFolder]
) -> None:
    folder = task(source.root, tmp_path / "dest").prepared()[2]
    ended.append(folder)
    open_up(folder.dest)
    starter = threading.Thread(target=ensure_agent, args=(source.root, tmp_path / "dest"))
    with alone(folder.claims / "agent", "agent"):
        starter.start()
        time.sleep(1.5)
        assert starter.is_alive() and LiveFolder(folder).agent() is None
    starter.join()
    assert LiveFolder(folder).agent() or folder.has_manifest()


def test_a_starter_waits_for_a_plain_stage_for_as_long_as_it_takes(
    source: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = task(source.root, tmp_path / "dest")
    folder = given.prepared()[2]
    open_up(folder.dest)
    monkeypatch.setattr(agent_main, "START_SECONDS", 0.3)
    command = [sys.executable, "-c", _HOLD, str(folder.dest), folder.copy]
    said: list[str] = []
    with (
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other,
        claimed(folder.claims, lambda: False),
    ):
        assert other.stdin and other.stdout and other.stdout.readline()
        starter = threading.Thread(target=agent_main.work, args=(given, said.append))
        starter.start()
        time.sleep(1.0)
        assert starter.is_alive() and not said
        folder.path.mkdir(parents=True)
        _announced(folder, Owner.current().node)
        starter.join()
        other.stdin.close()
    assert said == ["ready"]
    assert stager(folder) is None


def test_an_agent_that_is_started_again_does_what_was_asked(
    source: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[tuple[object, ...], dict[str, Any]]] = []
    monkeypatch.setattr(start, "ensure_agent", lambda *given, **more: asked.append((given, more)))
    dest = tmp_path / "dest"
    with working(task(source.root, dest, cache_bytes=4 * MiB, mode=0o640, copies=2)) as node:
        live = LiveFolder(node.folder)
        live.announce(AgentRecord(Owner.current(), node.server.address, 0, 1))
        filling = find_filling(node.folder, "elsewhere")
        assert filling and (live.path / "task.json").stat().st_mode & 0o777 == 0o600
        restart = pickle.loads(pickle.dumps(filling)).__reduce__()[1][2]
        restart()
    options = replace(NO_OPTIONS, copies=2, mode=0o640)
    more = {"strategy": "replicate", "options": options, "cache_bytes": 4 * MiB}
    assert asked == [((str(source.root), dest), more)]


def test_an_agent_whose_source_is_gone_ends_when_no_loader_waits(
    source: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (source.root / "shard-00001.bin").rename(tmp_path / "away")
    monkeypatch.setattr(agent_node, "STUCK_SECONDS", 2.0)
    monkeypatch.setattr(agent_node, "_LOOK_SECONDS", 0.25)
    with working(task(source.root, tmp_path / "dest")) as node:
        with closing(client_of(node)) as client:
            client.need(0)
        with pytest.raises(LetGo):
            node.until_complete()
        assert not node.store.is_complete


def test_a_killed_agent_is_followed_by_one_that_goes_on(
    source: Manifest, tmp_path: Path, ended: list[StagedFolder]
) -> None:
    dest = tmp_path / "dest"
    folder = ensure_agent(source.root, dest)
    ended.append(folder)
    if agent := LiveFolder(folder).agent():
        os.kill(agent.owner.pid, signal.SIGKILL)
        eventually(lambda: agent.owner.is_alive() is False)
    assert damaged_files(folder.path, source) == []
    assert ensure_agent(source.root, dest) == folder
    client = connect(folder, restart=lambda: ensure_agent(source.root, dest))
    assert client
    with closing(client):
        assert client.need(15, [(0, 5)]) in Origin
    eventually(folder.has_manifest)
    LiveFolder(folder).end_agent()
    assert_staged(dlio.stage(source.root, dest), source)


def test_many_processes_start_one_agent(source: Manifest, tmp_path: Path, ended: list[StagedFolder]) -> None:
    dest = tmp_path / "dest"
    code = (
        "import sys; from dlio.stage.live.start import ensure_agent; from dlio.stage.live.client import connect\n"
        "folder = ensure_agent(sys.argv[1], sys.argv[2]); client = connect(folder)\n"
        "client.need(0); print(folder.path)"
    )
    command = [sys.executable, "-c", code, str(source.root), str(dest)]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    printed = {process.communicate()[0] for process in running}
    copy = dest / "dlio" / source.content_id
    ended.append(StagedFolder(dest, source.content_id))
    assert printed == {f"{copy}\n"} and not any(process.returncode for process in running)
    assert (copy / ".dlio" / "live" / "agent.log").read_text().count("listens") == 1


def test_clean_ends_the_agent_of_a_job_that_is_over(
    source: Manifest, tmp_path: Path, ended: list[StagedFolder], job_7: None
) -> None:
    dest = tmp_path / "dest"
    folder = ensure_agent(source.root, dest)
    ended.append(folder)
    agent = LiveFolder(folder).agent()
    assert agent and status(source.content_id, dest)
    assert clean(dest, job="8") == []
    assert agent.owner.is_alive()
    assert clean(dest, job="7") == [folder.path]
    assert not agent.owner.is_alive() and list(dest.iterdir()) == []


def test_plain_stage_waits_for_the_agent(
    source: Manifest, tmp_path: Path, slow: list[tuple[int, int]], ended: list[StagedFolder]
) -> None:
    with working(task(source.root, tmp_path / "dest")) as node:
        thread = threading.Thread(target=dlio.stage, args=(source.root, tmp_path / "dest"))
        thread.start()
        eventually(lambda: is_complete(node))
        assert thread.is_alive()
    thread.join()
    assert Manifest.load(node.folder.path) == source
    assert sum(length for _, length in slow) == source.num_bytes
