"""Agents when bytes are damaged, a source was removed or hangs, a disk is full, a node is lost."""

from __future__ import annotations

import errno
import os
import threading
from contextlib import closing
from pathlib import Path

import pytest

from dlio.dataset.manifest import File, Manifest
from dlio.errors import StorageError
from dlio.locking import claim_file
from dlio.stage.client.status import in_words, state
from dlio.stage.copies.base_folder import open_up
from dlio.stage.copies.live_folder import FILES, LiveFolder
from dlio.stage.engine import __main__ as agent_main
from dlio.stage.engine import background as agent
from dlio.stage.engine import fill, foreground, server
from dlio.stage.engine.background import AgentStopped, Background
from dlio.stage.engine.node import Node
from dlio.stage.engine.store import Store
from dlio.stage.meeting import peer
from dlio.stage.protocol.wire import Origin
from dlio.stage.run import run
from dlio.stage.sources import MountedFolder
from tests.helpers.live import (
    background,
    client_of,
    content,
    eventually,
    is_complete,
    meet_in,
    nodes,
    prepared,
    task,
    working,
)
from tests.helpers.staging import MiB, damaged_files, flip


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
        with pytest.raises(StorageError, match=r"shard-00001\.bin: No such file or directory: see whether"):
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


@pytest.mark.parametrize(
    ("place", "name", "who"),
    [
        (MountedFolder, "read_range", r"shard-\d+.bin has sent"),
        (Store, "write", "the file system of .* has taken"),
        (Store, "finish", "the file system of .* has taken"),
    ],
)
def test_a_stage_whose_source_or_disk_hangs_says_so_and_ends(
    source: Manifest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    place: type,
    name: str,
    who: str,
) -> None:
    said, warning, over = list[str](), foreground._log.warning, threading.Event()

    def warned(text: str, *given: object) -> None:
        warning(text, *given)
        said.append(text)
        if len(said) == 3:
            monkeypatch.setattr(foreground, "HANGS_SECONDS", -1.0)

    def hangs(*given: object, **more: object) -> None:
        over.wait(60)
        raise OSError(errno.EIO, "it is over")

    monkeypatch.setattr(place, name, hangs)
    monkeypatch.setattr(foreground._log, "warning", warned)
    monkeypatch.setattr(fill, "GIVE_UP_SECONDS", -1.0)
    for constant, seconds in (("BEAT_SECONDS", 0.01), ("_SAY_SECONDS", 0.0)):
        monkeypatch.setattr(foreground, constant, seconds)
    try:
        with pytest.raises(StorageError, match=who + r" nothing for \d+ s: see whether the source"):
            run(source.root, tmp_path / "dest")
    finally:
        over.set()
    assert caplog.text.count("s: it is awaited for 3600 s") == 3


def test_an_agent_whose_disk_hangs_says_so_and_ends_when_no_loader_waits(
    source: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    over = threading.Event()
    monkeypatch.setattr(Store, "finish", lambda *_: over.wait(60))
    monkeypatch.setattr(fill, "GIVE_UP_SECONDS", -1.0)
    for module in (peer, agent):
        monkeypatch.setattr(module, "STUCK_SECONDS", 0.1)
    monkeypatch.setattr(agent, "_LOOK_SECONDS", 0.1)
    given = task(source.root, tmp_path / "dest")
    with working(given) as node:
        try:
            with pytest.raises(AgentStopped):
                background(given).until_complete(node)
            assert (copy := state(node.folder))
            assert f"waits: the file system of {node.folder.path} has taken nothing for" in in_words(copy["nodes"][0])
        finally:
            over.set()


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
    monkeypatch.setattr(server, "GIVE_UP_SECONDS", 0.5)
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
    answers, states, begun = threading.Event(), [], list[Node]()
    monkeypatch.setattr(MountedFolder, "read_range", lambda *_: answers.wait(60))
    given = task(source.root, tmp_path / "dest")
    folder = prepared(given)[2]
    open_up(folder.dest)

    def ended(_: Background, node: Node) -> None:
        begun.append(node)
        raise AgentStopped

    def end(code: int) -> None:
        states.append(claim_file.latest(folder.claims))
        raise _Exited

    monkeypatch.setattr(os, "_exit", end)
    monkeypatch.setattr(Background, "until_complete", ended)
    monkeypatch.setattr(agent_main, "_log_to", lambda _: None)
    try:
        with pytest.raises(_Exited):
            agent_main.work(given, print)
    finally:
        answers.set()
        eventually(begun[0].close)
    assert [claim.state for claim in states] == ["held"]


@pytest.mark.parametrize("call", ["pwrite", "posix_fallocate"])
def test_what_a_full_disk_cannot_take_is_passed_through(
    source: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    plain = getattr(os, call)

    def is_full(descriptor: int, *rest: object) -> int:
        if f"/{FILES}-" in os.readlink(f"/proc/self/fd/{descriptor}"):  # noqa: PTH115
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return int(plain(descriptor, *rest) or 0)

    monkeypatch.setattr(os, call, is_full)
    with working(task(source.root, tmp_path / "dest")) as node, closing(client_of(node)) as client:
        assert client.need(1, [(0, 5)]) is None
        data = bytearray(3 * MiB + 7)
        assert client.read(1, [(0, len(data))], memoryview(data)) == Origin.SOURCE
        assert data == content(source, 1)
        eventually(lambda: "No space left" in client.stat()["nodes"][0]["waiting_for"])


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


def test_an_agent_whose_source_is_gone_ends_when_no_loader_waits(
    source: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (source.root / "shard-00001.bin").rename(tmp_path / "away")
    for module in (peer, agent):
        monkeypatch.setattr(module, "STUCK_SECONDS", 2.0)
    monkeypatch.setattr(agent, "_LOOK_SECONDS", 0.25)
    given = task(source.root, tmp_path / "dest")
    with working(given) as node:
        with closing(client_of(node)) as client:
            client.need(0)
        with pytest.raises(AgentStopped):
            background(given).until_complete(node)
        assert not node.store.is_complete
