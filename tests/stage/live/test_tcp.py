"""Between nodes: a client without the token is refused, and blocks no other, however often it connects."""

from __future__ import annotations

import errno
import itertools
import logging
import os
import socket
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dlio.dataset.manifest import Manifest
from dlio.io import world
from dlio.stage.engine.node import Node
from dlio.stage.protocol import tcp, wire
from dlio.stage.protocol.connection import Connection, RefusedError, exchange
from dlio.stage.protocol.serving import gives_way
from dlio.stage.protocol.tcp import TcpListener
from dlio.stage.protocol.wire import Op, Request, Status, WireError
from tests.helpers.live import NAME, WAIT_SECONDS, connected, eventually, let_in, open_to_nodes, token_of
from tests.helpers.staging import write_dataset

TOKEN, CONTENT = bytes(range(32)), "0" * 32
NEED = Request(Op.NEED, 0, ((0, 1),))


@pytest.fixture
def small(tmp_path: Path) -> Manifest:
    """Two shards."""
    return write_dataset(tmp_path / "source", [100_000, 17])


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is cut off for being slow, and there is little room."""
    monkeypatch.setattr(wire, "CONNECT_SECONDS", 1000.0)
    monkeypatch.setattr(TcpListener, "most_of_host", 70)
    monkeypatch.setattr(TcpListener, "most", 100)


@pytest.fixture
def node(small: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    """A node that has staged all of it, and listens to others."""
    with open_to_nodes(small.root, tmp_path / "dest", monkeypatch) as found:
        yield found


def is_served(connection: Connection) -> bool:
    return connection.ask(NEED).status == Status.OK


def closes(peer: socket.socket) -> bool:
    """Returns whether the other end closes the connection."""
    peer.settimeout(WAIT_SECONDS)
    with suppress(ConnectionResetError):
        while peer.recv(1 << 16):
            pass
    return True


def is_open(peer: socket.socket) -> bool:
    peer.setblocking(False)
    try:
        return bool(peer.recv(1))
    except BlockingIOError:
        return True


def unverified(address: world.Address, host: str = "127.0.0.1") -> socket.socket:
    """Returns a connection that is greeted, and proves nothing."""
    peer = socket.create_connection(address, WAIT_SECONDS, source_address=(host, 0))
    wire.receive(peer, 32)
    return peer


def served(behave: Callable[[socket.socket], None], listener: socket.socket) -> threading.Thread:
    """Returns a thread that lets a function have each connection until the listener is shut down."""

    def run() -> None:
        with suppress(OSError):
            while True:
                peer, _ = listener.accept()
                with peer, suppress(OSError, WireError):
                    behave(peer)

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def test_connections_that_the_system_does_not_watch_end_no_thread(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """/proc/sys/fs/epoll/max_user_watches is a bound for all processes of a user."""

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(world.Selector, "register", refuse)
        with socket.create_connection(node.address, WAIT_SECONDS) as peer:
            assert closes(peer)
    with closing(connected(node)) as connection:
        assert is_served(connection)


def test_another_token_is_refused_and_named(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING), pytest.raises(RefusedError):
        connected(node, os.urandom(32))
    eventually(lambda: "without the job's token" in caplog.text)
    with closing(connected(node)) as connection:
        assert is_served(connection)


def test_another_data_set_is_refused(node: Node) -> None:
    with pytest.raises(RefusedError):
        tcp.connect(node.address, token_of(node), CONTENT, NAME)


def test_a_replayed_proof_is_refused(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """A proof of the token is valid on one connection only."""
    said: list[bytes] = []

    class Recorded(socket.socket):
        def sendall(self, data: bytes) -> None:  # type: ignore[override]
            said.append(data)
            super().sendall(data)

    with monkeypatch.context() as patch:
        patch.setattr(socket, "socket", Recorded)
        connected(node).close()
    (answer,) = [data for data in said if len(data) == TcpListener.answer_bytes]
    with unverified(node.address) as peer:
        peer.sendall(answer)
        assert wire.receive(peer, 32) == bytes(32) and closes(peer)


def test_a_server_that_only_reflects_is_refused() -> None:
    """An impostor has the client's proof, but not the server's."""

    def impostor(peer: socket.socket) -> None:
        peer.sendall(os.urandom(32))
        peer.sendall(wire.receive(peer, 64)[32:])
        closes(peer)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = served(impostor, listener)
        with pytest.raises(RefusedError):
            tcp.connect(listener.getsockname(), TOKEN, CONTENT, NAME)
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


def test_a_proof_that_is_relayed_from_another_address_is_refused(node: Node) -> None:
    """A proxy between a client and a server, at its own address, can convince neither."""
    verdicts: list[bytes] = []

    def relay(client: socket.socket) -> None:
        with socket.create_connection(node.address) as server:
            client.sendall(wire.receive(server, 32))
            server.sendall(wire.receive(client, 64))
            verdicts.append(wire.receive(server, 32))
            client.sendall(verdicts[0])
            closes(client)

    with socket.create_server(("127.0.0.2", 0)) as listener:
        thread = served(relay, listener)
        with pytest.raises(RefusedError):
            tcp.connect(listener.getsockname(), token_of(node), node.plan.manifest.content_id, NAME)
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()
    assert verdicts == [bytes(32)]


def test_who_is_too_slow_with_the_proof_is_cut_off(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "CONNECT_SECONDS", 0.2)
    with unverified(node.address) as peer:
        peer.sendall(b"half a proof")
        assert closes(peer)


def test_the_oldest_unverified_connections_give_way_and_a_client_gets_in(patient: None, node: Node) -> None:
    """Held open and renewed, from one host, they keep nobody out."""
    most = TcpListener.most_of_host
    with ExitStack() as stack:
        held = deque(stack.enter_context(unverified(node.address)) for _ in range(most))
        for _ in range(3):
            for _ in range(most):
                held.append(stack.enter_context(unverified(node.address)))
                assert closes(held.popleft())
            with closing(connected(node)) as connection:  # in its place the oldest has left
                assert is_served(connection)
            assert closes(held.popleft()) and all(map(is_open, held))
            held.append(stack.enter_context(unverified(node.address)))


def test_one_hosts_unverified_connections_displace_no_other_hosts(patient: None, node: Node) -> None:
    with ExitStack() as stack, unverified(node.address, "127.0.0.2") as other:
        for _ in range(TcpListener.most_of_host + 20):
            stack.enter_context(unverified(node.address))
        assert is_open(other)


def test_a_verified_connection_is_never_displaced(patient: None, node: Node) -> None:
    with ExitStack() as stack, closing(connected(node)) as connection:
        for number in range(TcpListener.most + 20):
            stack.enter_context(unverified(node.address, f"127.0.{number // 16}.1"))
        assert is_served(connection)


@given(st.lists(st.sampled_from("abcdefg"), max_size=60), st.integers(1, 4), st.integers(4, 9))
@example(list("aabbbcaddb"), 3, 5)  # a host has all that it may have, and all hosts have
def test_only_a_host_with_the_most_connections_loses_its_oldest(hosts: list[str], most_of_host: int, most: int) -> None:
    held = list[str]()
    for host in hosts:
        counts = Counter(held)
        is_full = counts[host] == most_of_host or len(held) == most
        leaver = gives_way(held, host, most_of_host, most)
        assert (leaver is not None) == is_full, "nobody gives way while there is room"
        if leaver is not None:
            assert held[leaver] not in held[:leaver], "the oldest of its host"
            assert held[leaver] == host or counts[held[leaver]] == max(counts.values())
            del held[leaver]
        held.append(host)


def test_a_client_tries_again_while_it_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "SILENCE_SECONDS", WAIT_SECONDS)
    listener, tries = TcpListener("127.0.0.1", TOKEN, CONTENT), list[int]()

    def behave(peer: socket.socket) -> None:
        tries.append(len(tries))
        if len(tries) == 2:
            peer.sendall(os.urandom(32))  # cut off in the middle
        if len(tries) == 4:
            let_in(listener, peer)

    with listener.listening:
        thread = served(behave, listener.listening)
        tcp.connect(listener.address, TOKEN, CONTENT, NAME).close()
        listener.close()
        thread.join()
    assert len(tries) == 4


def test_a_client_that_is_always_cut_off_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "SILENCE_SECONDS", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = served(lambda peer: None, listener)
        with pytest.raises(
            TimeoutError, match=r"127\.0\.0\.1:\d+ ended each of [2-9] connections within 0\.1 s before"
        ):
            tcp.connect(listener.getsockname(), TOKEN, CONTENT, NAME)
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


def test_a_server_that_trickles_bytes_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        for _ in range(20):
            theirs.send(b"x")  # which a read never joins
        monkeypatch.setattr(world, "monotonic", itertools.count().__next__)
        with pytest.raises(TimeoutError, match="not verified in time"):
            exchange(ours, 10, b"", 20)


def test_a_client_learns_at_once_that_nobody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = listener.getsockname()
    with pytest.raises(ConnectionRefusedError):
        tcp.connect(address, TOKEN, CONTENT, NAME)
