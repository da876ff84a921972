"""A peer that does not prove the token, or breaks the protocol, is refused, named, and avoided."""

from __future__ import annotations

import os
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from functools import partial
from pathlib import Path

import pytest

from dlio.dataset.manifest import Manifest
from dlio.errors import StorageError
from dlio.locking.owner import Owner
from dlio.stage.copies.live_folder import LiveFolder
from dlio.stage.engine.node import Node
from dlio.stage.meeting.peer import Peer
from dlio.stage.protocol import serving, wire
from dlio.stage.protocol.connection import Connection, ConnectionPool, node_client
from dlio.stage.protocol.tcp import TcpListener
from dlio.stage.protocol.wire import Op, Origin, Request, Status, WireError
from tests.helpers.live import (
    client_of,
    connected,
    content,
    eventually,
    is_complete,
    let_in,
    meet_in,
    met,
    open_to_nodes,
    task,
    working,
)  # fmt: skip
from tests.helpers.staging import MiB, damaged_files, write_dataset


@pytest.fixture
def small(tmp_path: Path) -> Manifest:
    """Three shards."""
    return write_dataset(tmp_path / "source", [MiB + 5, 3 * MiB, 0, 17])


@pytest.fixture
def node(small: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    """A node that has staged all of it, and listens to others."""
    with open_to_nodes(small.root, tmp_path / "dest", monkeypatch) as found:
        yield found


def still_serves(node: Node) -> bool:
    with closing(client_of(node)) as client:
        return client.need(0, [(0, 10)]) == Origin.DISK


def closes(peer: socket.socket) -> bool:
    """Returns whether the other end closes the connection."""
    peer.settimeout(10)
    with suppress(ConnectionResetError):
        while peer.recv(1 << 16):
            pass
    return True


def test_an_agent_that_is_killed_in_the_middle_of_a_request_is_asked_again(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, cut = serving.Serving._answer, list[Request]()

    def answer(self: serving.Serving, peer: socket.socket, request: Request, client: bytes) -> None:
        if len(cut) < 2:
            cut.append(request)
            raise WireError("killed")
        plain(self, peer, request, client)

    monkeypatch.setattr(serving.Serving, "_answer", answer)
    with closing(client_of(node)) as client:
        assert client.need(0, [(0, 1)]) in Origin
    assert len(cut) == 2


HEADS = {
    "another magic": struct.pack("<4sBBHI", b"http", 1, 1, 0, 0),
    "another version": struct.pack("<4sBBHI", b"dlio", 9, 1, 0, 0),
    "an unknown op": struct.pack("<4sBBHI", b"dlio", 1, 77, 0, 0),
    "too many ranges": struct.pack("<4sBBHI", b"dlio", 1, 1, 65535, 0),
}


@pytest.mark.parametrize("head", HEADS.values(), ids=HEADS)
def test_frames_of_no_sense_end_the_connection(node: Node, head: bytes) -> None:
    connection = connected(node)
    with closing(connection):
        connection._peer.sendall(head)
        assert closes(connection._peer)
    assert still_serves(node)


REQUESTS = {
    "no such file": Request(Op.READ, 99, ((0, 1),)),
    "beyond the end": Request(Op.READ, 0, ((0, MiB + 6),)),
    "far beyond the end": Request(Op.NEED, 0, ((1 << 62, (1 << 62) + 1),)),
    "more than one request may": Request(Op.READ, 1, tuple([(0, 3 * MiB)] * 3)),
    "to be fetched again beyond the end": Request(Op.BAD, 0, ((0, 1 << 60),)),
}


@pytest.mark.parametrize("request_", REQUESTS.values(), ids=REQUESTS)
def test_ranges_of_no_sense_are_refused_in_words(node: Node, request_: Request) -> None:
    connection = connected(node)
    with closing(connection):
        with pytest.raises(StorageError, match="asked for"):
            connection.ask(request_, limit=100 * MiB)
        assert connection.ask(Request(Op.NEED, 0, ((0, 1),))).status == Status.OK


def test_an_announcement_behind_a_link_is_ignored(node: Node, tmp_path: Path) -> None:
    live = LiveFolder(node.folder)
    (live.path / "agent.json").rename(tmp_path / "elsewhere.json")
    (live.path / "agent.json").symlink_to(tmp_path / "elsewhere.json")
    assert live.agent() is None


def garbage(peer: socket.socket, request: Request) -> None:
    peer.sendall(os.urandom(64))


def too_long(peer: socket.socket, request: Request) -> None:
    wire.send_reply(peer, Status.OK, length=1 << 40)


def too_short(peer: socket.socket, request: Request) -> None:
    wire.send_reply(peer, Status.OK, b"x")


def wrong_bytes(peer: socket.socket, request: Request) -> None:
    wire.send_reply(peer, Status.OK, bytes(request.num_bytes))


def stalls(peer: socket.socket, request: Request) -> None:
    closes(peer)


def stalls_later(peer: socket.socket, request: Request) -> None:
    wire.send_reply(peer, Status.OK, length=request.num_bytes)
    peer.sendall(b"some")
    closes(peer)


def waits_for_ever(peer: socket.socket, request: Request) -> None:
    with suppress(OSError):
        while True:
            wire.send_reply(peer, Status.WAIT)
            threading.Event().wait(0.05)


def drips(peer: socket.socket, request: Request) -> None:
    wire.send_reply(peer, Status.OK, length=request.num_bytes)
    with suppress(OSError):
        while True:
            peer.sendall(b"x")
            threading.Event().wait(0.05)


def leaves(peer: socket.socket, request: Request) -> None:
    peer.close()


def complains(peer: socket.socket, request: Request) -> None:
    wire.send_error(peer, "no" * 10000)


Behaviour = Callable[[socket.socket, Request], None]


class HostilePeer:
    """Node 1 of 2: it knows the token, and attacks."""

    def __init__(self, content_id: str, behave: Behaviour) -> None:
        self._meeting = met(content_id, 1, 2)
        self._behave = behave
        self._listener = TcpListener("127.0.0.1", self._meeting.token, content_id)
        self._meeting.tell(Peer(1, self._listener.address, Owner.current(), False, 0, 0))
        self.asked = 0
        self._threads = [threading.Thread(target=self._listen)]
        self._threads[0].start()

    def _listen(self) -> None:
        with suppress(OSError):
            while True:
                peer, _ = self._listener.listening.accept()
                thread = threading.Thread(target=self._converse, args=(peer,))
                self._threads.append(thread)
                thread.start()

    def _converse(self, peer: socket.socket) -> None:
        with peer, suppress(OSError):
            let_in(self._listener, peer)
            peer.settimeout(30)
            while True:
                request = wire.receive_request(peer)
                self.asked += 1
                self._behave(peer, request)

    def close(self) -> None:
        self._listener.close()
        self._listener.listening.close()
        for thread in self._threads:
            thread.join()
        self._meeting.leave()


@pytest.mark.parametrize(
    "behave",
    [garbage, too_long, too_short, wrong_bytes, stalls, stalls_later, drips, waits_for_ever, leaves, complains],
    ids=lambda behave: behave.__name__,
)
def test_a_hostile_peer_is_gone_round(
    behave: Behaviour, small: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    meet_in(tmp_path / "meet", monkeypatch)
    usual = wire.STALL_SECONDS
    for name in ("STALL_SECONDS", "SILENCE_SECONDS"):
        monkeypatch.setattr(wire, name, 0.3)
    with (
        closing(HostilePeer(small.content_id, behave)) as peer,
        working(task(small.root, tmp_path / "dest", 0, 2)) as node,
    ):
        eventually(lambda: is_complete(node))
        assert peer.asked
        monkeypatch.setattr(wire, "STALL_SECONDS", usual)  # a loader's reads may take longer on a busy machine
        with closing(client_of(node)) as client:
            for number, shard in enumerate(small.shards):
                data = bytearray(shard.num_bytes)
                client.read(number, [(0, shard.num_bytes)], memoryview(data))
                assert data == content(small, number)
    assert damaged_files(node.folder.path, small) == []


def test_wrong_bytes_of_a_peer_for_a_file_that_is_not_kept_come_from_the_source_then(
    small: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def behave(peer: socket.socket, request: Request) -> None:
        wrong_bytes(peer, request) if request.op == Op.SERVE else wire.send_reply(peer, Status.ELSEWHERE)

    meet_in(tmp_path / "meet", monkeypatch)
    with (
        closing(HostilePeer(small.content_id, behave)),
        working(task(small.root, tmp_path / "dest", 0, 2, strategy="partition")) as node,
        closing(client_of(node)) as client,
    ):
        far = next(number for number in range(4) if number not in node.plan.kept)
        data, spans = bytearray(17), [(0, 17)]
        assert client.read(far, spans, memoryview(data)) == Origin.PEER and data == bytes(17)
        client.bad(far, spans)
        assert client.read(far, spans, memoryview(data)) == Origin.SOURCE
        assert data == content(small, far)[:17]


def test_idle_connections_of_nodes_make_room_for_others(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "MAX_CONNECTIONS", 2)
    pools = {rank: ConnectionPool(1) for rank in (1, 2)}
    read = partial(Connection.read, request=Request(Op.HELD, 0, ((0, 1),)), target=memoryview(bytearray(1)))

    def is_served(rank: int) -> bool:
        connect = partial(connected, node, name=node_client(rank))
        return pools[rank].use(read, connect) == Origin.DISK  # once a connection that ends is idle

    try:
        for _ in range(3):
            for rank in pools:
                assert is_served(rank)
            assert still_serves(node)
    finally:
        for pool in pools.values():
            pool.close()


def test_a_new_connection_of_a_node_is_not_ended_before_it_asks(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "MAX_CONNECTIONS", 2)
    request, data = Request(Op.HELD, 0, ((0, 1),)), memoryview(bytearray(1))
    connections = [connected(node, name=node_client(rank)) for rank in (1, 2)]
    monkeypatch.setattr(wire, "SILENCE_SECONDS", 0.3)
    with pytest.raises(TimeoutError, match="it has too many others"):
        connected(node, name=node_client(3)).read(request, data)
    for _ in range(2):
        for connection in connections:
            assert connection.read(request, data) == Origin.DISK
    for connection in connections:
        connection.close()


def test_what_is_not_answered_in_time_is_not_asked_again(node: Node) -> None:
    asked: list[Connection] = []

    def ask(connection: Connection) -> None:
        asked.append(connection)
        if len(asked) > 1:
            raise TimeoutError

    connect = partial(connected, node)
    with closing(ConnectionPool(1)) as pool:
        pool.use(ask, connect)
        with pytest.raises(TimeoutError):
            pool.use(ask, connect)
    assert len(asked) == 2


def test_a_connection_that_breaks_shows_whether_the_agent_has_ended(node: Node) -> None:
    """A node that ends after it was asked, and before it has answered, is known to have ended, and not only silent."""
    connections = [connected(node), connected(node)]

    def connect() -> Connection:
        if not connections:
            raise ConnectionRefusedError
        return connections.pop()

    def ask(connection: Connection) -> int:
        if connections:
            raise ConnectionResetError
        return 7

    def broken(connection: Connection) -> None:
        raise ConnectionResetError

    with closing(ConnectionPool(1)) as pool:
        assert pool.use(ask, connect) == 7  # a kept connection may have ended, and so may a new one
        with pytest.raises(ConnectionRefusedError):
            pool.use(broken, connect)
