"""Nodes that know each other's addresses before they begin, and one that cannot begin."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from dlio.cluster.topology import Topology
from dlio.dataset.manifest import Manifest
from dlio.errors import MissingError, StorageError, UsageError
from dlio.io import world
from dlio.io.world.own_address import INTERFACE
from dlio.locking.claim import claimed
from dlio.locking.owner import Owner
from dlio.stage.copies.base_folder import open_up
from dlio.stage.copies.live_folder import AgentRecord, LiveFolder
from dlio.stage.engine import node as engine_node
from dlio.stage.engine.complete import complete
from dlio.stage.meeting.meeting import Meeting
from dlio.stage.meeting.peer import Introduced, Peer
from dlio.stage.planning.job import Job
from dlio.stage.protocol.tcp import TOKEN_BYTES, TcpListener, listening_at
from dlio.stage.sources import source_of
from dlio.stage.strategies import load
from tests.helpers.live import eventually, meet_in, met, prepared, task
from tests.helpers.staging import damaged_files
from tests.helpers.staging import node as topology_of


@pytest.fixture
def other(source: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Meeting]:
    """The second of two nodes, which lacks a file, as it meets the first."""
    meet_in(tmp_path / "meet", monkeypatch)
    other = met(source.content_id, 1, 2)
    other.tell(other.word(lacks=1))
    yield other
    other.leave()


def _at(rank: int, listening: socket.socket) -> Peer:
    """Returns what a node tells that has not begun."""
    return Peer(rank, listening.getsockname()[:2], Owner.current(), False, 0, 0)


def test_a_place_where_this_node_cannot_listen_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(INTERFACE, "192.0.2.7")
    with pytest.raises(StorageError, match=r"does not listen at 192\.0\.2\.7: Cannot assign .*DLIO_INTERFACE names"):
        listening_at(world.address())


def test_a_node_that_cannot_serve_is_found_gone(
    source: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others would wait at an address at which nobody answers."""
    content, token, listening = source.content_id, os.urandom(TOKEN_BYTES), listening_at("127.0.0.1")
    address = listening.getsockname()[:2]
    place = Introduced(token, [_at(0, listening)], TcpListener(listening, token, content))

    def fails(*_: object) -> None:
        raise MissingError("no thread can be started")

    monkeypatch.setattr(engine_node, "Server", fails)
    job = Job(source_of(source), tmp_path / "dest", topology_of(0, 2))
    with pytest.raises(MissingError, match="no thread"):
        complete(job, load("broadcast"), Meeting(place, 0, 2, content))
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address, 10)


def test_a_node_without_a_plan_leaves_its_word(source: Manifest, tmp_path: Path, other: Meeting) -> None:
    """The others would expect it for a minute."""
    job = Job(source_of(source), tmp_path / "dest", Topology(0, 2))
    with pytest.raises(UsageError, match="needs the nodes' numbers"):
        complete(job, load("partition"), met(source.content_id, 0, 2))
    assert other.peer(0) is None and not other.expects(0)
    assert [peer.waiting_for[:22] for peer in other.lost()] == ["the strategy partition"]


def test_a_node_whose_copy_is_filled_apart_from_the_others_is_not_complete(
    source: Manifest, tmp_path: Path, other: Meeting
) -> None:
    job = Job(source_of(source), tmp_path / "dest", topology_of(0, 2))
    folder = prepared(task(source.root, tmp_path / "dest"))[2]
    open_up(folder.dest)
    folder.path.mkdir(mode=0o700)
    (live := LiveFolder(folder)).make()
    live.write_record(AgentRecord(Owner.current(), "socket", 0, 1))
    filling = threading.Thread(target=complete, args=(job, load("broadcast"), met(source.content_id, 0, 2)))
    with pytest.raises(KeyboardInterrupt), claimed(folder.claims, lambda: False):
        filling.start()
        eventually(lambda: other.peer(0) is None and not other.expects(0))
        assert ["another process fills" in peer.waiting_for for peer in other.lost()] == [True]
        live.remove_record()
        raise KeyboardInterrupt
    filling.join()
    assert damaged_files(folder.path, source) == []
