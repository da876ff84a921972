"""A shard that is large for the nodes: each reads a part of it from the source, and gets the rest from the others."""

from __future__ import annotations

import logging
import os
import threading
from contextlib import closing
from pathlib import Path

import pytest

from dlio.dataset.manifest import File, Manifest
from dlio.stage.engine import failures
from dlio.stage.engine.node import Node
from dlio.stage.meeting import meeting
from dlio.stage.planning import homes
from dlio.stage.protocol.connection import Connection
from dlio.stage.protocol.wire import Op, Origin, Request
from dlio.stage.sources import MountedFolder
from tests.helpers.live import are_patient, client_of, content, eventually, is_complete, meet_in, nodes, task, working
from tests.helpers.staging import MiB, damaged_files, write_dataset

_PIECE = MiB // 4


@pytest.fixture
def one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Manifest:
    """A data set of one shard, of nearly 16 pieces."""
    monkeypatch.setattr(homes, "PIECE_BYTES", _PIECE)
    meet_in(tmp_path / "meet", monkeypatch)
    return write_dataset(tmp_path / "source", [4 * MiB - 7])


def source_bytes(found: list[Node]) -> list[int]:
    return [node.fetching.source_bytes for node in found]


def test_each_node_reads_its_share_and_all_have_the_whole(one: Manifest, tmp_path: Path) -> None:
    with nodes(one.root, tmp_path, 3) as found:
        with closing(client_of(found[2])) as client:
            data, begin = bytearray(3 * _PIECE), 5 * _PIECE - 9  # of all three
            client.read(0, [(begin, begin + len(data))], memoryview(data))
            assert data == content(one, 0)[begin : begin + len(data)]
        eventually(lambda: all(map(is_complete, found)))
        assert source_bytes(found) == [6 * _PIECE - 7, 5 * _PIECE, 5 * _PIECE]
    assert [damaged_files(node.folder.path, one) for node in found] == [[], [], []]


def test_others_read_the_pieces_of_a_node_that_does_not_come(
    one: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(meeting, "JOIN_SECONDS", 1.0)
    monkeypatch.setattr(meeting, "LATE_SECONDS", 1.0)
    with working(task(one.root, tmp_path / "0", 0, 3)) as first, working(task(one.root, tmp_path / "1", 1, 3)) as other:
        eventually(lambda: is_complete(first) and is_complete(other))
        assert min(source_bytes([first, other])) > 0
        assert sum(source_bytes([first, other])) >= one.num_bytes  # more if one takes the other for lost, too
    assert [damaged_files(node.folder.path, one) for node in (first, other)] == [[], []]


def test_a_node_that_comes_again_reads_nothing_that_the_others_have(one: Manifest, tmp_path: Path) -> None:
    with nodes(one.root, tmp_path, 3) as found:
        eventually(lambda: all(map(is_complete, found)))
        with working(task(one.root, tmp_path / "again", 1, 3)) as late:
            eventually(lambda: is_complete(late))
            assert source_bytes([late]) == [0]


def test_a_piece_that_is_damaged_on_its_way_is_noticed_and_only_who_sent_it_is_avoided(
    one: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """All others have sent some."""
    read, flipped = Connection.read, list[int]()

    def flips_once(self: Connection, request: Request, target: memoryview, patience: float = 0.0) -> object:
        found = read(self, request, target, patience)
        if request.op in (Op.SERVE, Op.AHEAD) and found is not None and not flipped:
            flipped.append(request.spans[0][0])
            target[7] ^= 1
        return found

    monkeypatch.setattr(Connection, "read", flips_once)
    with nodes(one.root, tmp_path, 3) as found, caplog.at_level(logging.WARNING):
        eventually(lambda: all(map(is_complete, found)))
        avoided = [other for node in found if node.meeting for other in range(3) if node.meeting.is_lost(other)]
    assert avoided == [flipped[0] // _PIECE % 3]
    assert "is damaged: it is fetched from the source" in caplog.text
    assert [damaged_files(node.folder.path, one) for node in found] == [[], [], []]


def test_what_passes_through_comes_from_each_owner(one: Manifest, tmp_path: Path) -> None:
    with nodes(one.root, tmp_path, 3) as found:
        eventually(lambda: all(map(is_complete, found)))
        before, begin, target = found[0].server.stat(), _PIECE - 9, bytearray(3 * _PIECE + 18)
        assert found[0].fetching.fetch(0, begin, memoryview(target)) == Origin.SOURCE
        after = found[0].server.stat()
        assert after["source_bytes"] - before["source_bytes"] == 9 + _PIECE
        assert after["peer_bytes"] - before["peer_bytes"] == 2 * _PIECE + 9
        assert target == content(one, 0)[begin : begin + len(target)]


def test_a_file_that_changes_while_its_nodes_read_it_gets_no_name_until_it_is_as_before(
    one: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each has read some pieces of the old one by then."""
    changed, plain, old = threading.Event(), MountedFolder.read_range, content(one, 0)
    (path := tmp_path / "image.sqsh").write_bytes(old)
    was = path.stat().st_mtime_ns

    def read_range(self: MountedFolder, file: File, offset: int, target: memoryview) -> None:
        assert offset < 8 * _PIECE or changed.wait(60)
        plain(self, file, offset, target)

    monkeypatch.setattr(MountedFolder, "read_range", read_range)
    monkeypatch.setattr(failures, "_PAUSES", (0.01, 0.1))
    are_patient(monkeypatch)
    with nodes(path, tmp_path, 2) as found:
        eventually(lambda: min(source_bytes(found)) >= 3 * _PIECE)
        path.write_bytes(old[::-1])
        changed.set()
        eventually(lambda: all("changed while it was copied" in node.fill.problem for node in found))
        assert not list(tmp_path.glob("node*/dlio/*/image.sqsh"))
        path.write_bytes(old)
        os.utime(path, ns=(was, was))
        eventually(lambda: all(map(is_complete, found)))
    assert [each.read_bytes() == old for each in tmp_path.glob("node*/dlio/*/image.sqsh")] == [True, True]
