"""Agents: what they read from the source, from peers, and in which order."""

from __future__ import annotations

import threading
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from dlio.dataset.manifest import Manifest
from dlio.errors import StorageError
from dlio.stage.client.status import in_one_word, state
from dlio.stage.copies.folder import StagedFolder
from dlio.stage.engine import writing
from dlio.stage.engine.node import Node
from dlio.stage.meeting import meeting
from dlio.stage.planning import homes
from dlio.stage.protocol.wire import Origin
from tests.helpers.live import (
    are_patient,
    client_of,
    content,
    eventually,
    is_complete,
    meet_in,
    met,
    nodes,
    open_to_nodes,
    task,
    working,
)
from tests.helpers.staging import MiB, damaged_files, write_dataset


def source_bytes(found: list[Node]) -> int:
    return sum(node.server.stat()["source_bytes"] for node in found)


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


def test_the_rate_of_a_complete_copy_is_that_of_its_staging(source: Manifest, tmp_path: Path) -> None:
    with working(task(source.root, tmp_path)) as node:
        eventually(lambda: is_complete(node))
        rate = node.peer().bytes_per_second
        assert 0 < rate == node.peer().bytes_per_second == node.server.stat()["nodes"][0]["bytes_per_second"]


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
            told = state(node.folder)
            assert told is not None and in_one_word(told) == "a cache that is smaller than the data set, full"
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


@pytest.mark.parametrize(
    ("percents", "has_large"),
    [((100, 100, 10, 30), True), ((100, 10, 10, 100), False), ((50, 60, 15, 15), True), ((60, 0, 60), False)],
)
def test_nodes_with_less_room_have_the_source_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, percents: tuple[int, ...], has_large: bool
) -> None:
    """What one has no room for, another reads and keeps."""
    meet_in(tmp_path / "meet", monkeypatch)
    are_patient(monkeypatch)
    for module, name in ((homes, "PIECE_BYTES"), (writing, "ONCE_BYTES")):
        monkeypatch.setattr(module, name, 64 << 10)
    source = write_dataset(tmp_path / "source", [100_007] * 32 + [1_000_000] * has_large)
    with ExitStack() as stack:
        found = list[Node]()
        for rank, percent in enumerate(percents):
            room = source.num_bytes * percent // 100
            given = task(source.root, tmp_path / str(rank), rank, len(percents), cache_bytes=room)
            found.append(stack.enter_context(working(given)))
        for node in found:
            eventually(lambda node=node: is_complete(node))  # type: ignore[misc]
            assert node.store.num_bytes <= max(node.plan.room, 0)
        for number, shard in enumerate(source.shards):
            with closing(client_of(found[number % len(found)])) as client:
                data = bytearray(shard.num_bytes)
                client.read(number, [(0, len(data))], memoryview(data))
                assert data == content(source, number)
        assert source_bytes(found) == source.num_bytes


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


def test_the_part_of_a_node_that_comes_late_is_left_to_it(
    source: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Except for what a reader waits for."""
    meet_in(tmp_path / "meet", monkeypatch)
    monkeypatch.setattr(meeting, "JOIN_SECONDS", 0.0)
    with working(task(source.root, tmp_path / "first", 0, 2)) as first, closing(client_of(first)) as client:
        own = [number for number in range(16) if first.plan.home(number) == 0]
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
            assert late.server.stat()["source_bytes"] == 0


def test_a_node_is_complete_for_the_others_once_its_manifest_is_there(
    source: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise StorageError("the disk is full")

    def told() -> list[tuple[bool, bool, bool]]:
        """Returns what another node knows, and whether for more than 6 s, after it was not asked again for 7 s."""
        other = met(source.content_id, 1, 2)
        found = other.known()
        other._others[0].told -= 7
        monkeypatch.setattr(other, "known", lambda: found)
        ages = [age for _, age in other.told()]
        other._others[0].told = float("-inf")  # as if its words were those in the folder where they meet
        assert len(other.told()) == found[0].is_complete
        other.leave()
        return [(peer.lacks == 0, peer.is_complete, age > 6) for peer, age in zip(found, ages, strict=True)]

    with open_to_nodes(source.root, tmp_path / "dest", monkeypatch) as node:
        with monkeypatch.context() as patch:
            patch.setattr(StagedFolder, "finish", refused)
            with pytest.raises(StorageError, match="the disk is full"):
                node.publish()
        assert told() == [(True, False, True)]
        node.publish()
        assert told() == [(True, True, False)]
