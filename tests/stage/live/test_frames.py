"""The frames between agents and loaders: bounded before anything is allocated, and waited for with a limit."""

from __future__ import annotations

import re
import socket
import struct
import threading
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlio.io import world
from dlio.stage.protocol import wire
from dlio.stage.protocol.wire import Op, Request, Status, WireError

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    """Two connected sockets."""
    ends = socket.socketpair()
    for end in ends:
        end.settimeout(10)
    yield ends
    for end in ends:
        end.close()


def test_what_is_sent_is_received(pair: Pair) -> None:
    request = Request(Op.READ, 7, ((0, 5), (9, 9)))
    wire.send_request(pair[0], request)
    assert wire.receive_request(pair[1]) == request
    wire.send_reply(pair[1], Status.OK, b"12345")
    reply = wire.receive_reply(pair[0], 5)
    assert reply.status == Status.OK and wire.receive(pair[0], reply.length) == b"12345"


def test_a_long_reply_is_not_copied(pair: Pair) -> None:
    """A node sends the list of a folder to a thousand others at a time."""
    body, target = bytes(8 << 20), memoryview(bytearray(8 << 20))
    tracemalloc.start()
    try:
        sender = threading.Thread(target=wire.send_reply, args=(pair[0], Status.OK, body))
        sender.start()
        assert wire.receive_reply(pair[1], len(body)).length == len(body)
        wire.receive_into(pair[1], target)
        sender.join()
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < len(body) / 2 and target == body


def test_a_request_with_too_many_ranges_is_refused(pair: Pair) -> None:
    pair[0].sendall(struct.pack("<4sBBHI", b"dlio", 3, Op.READ, wire.MAX_RANGES + 1, 0))
    with pytest.raises(WireError, match="at most 4096 ranges"):
        wire.receive_request(pair[1])


def test_a_reply_longer_than_asked_for_is_refused(pair: Pair) -> None:
    wire.send_reply(pair[0], Status.OK, b"123456")
    with pytest.raises(WireError, match="expected at most 5 bytes"):
        wire.receive_reply(pair[1], 5)


def test_a_long_error_is_cut(pair: Pair) -> None:
    wire.send_error(pair[0], "x" * (2 * wire.MAX_TEXT))
    assert wire.receive_reply(pair[1], 0).length == wire.MAX_TEXT


@pytest.mark.parametrize("magic, version", [(b"http", 3), (b"dlio", 99)])
def test_frames_of_another_protocol_or_version_are_refused(pair: Pair, magic: bytes, version: int) -> None:
    problem = "version 3 of dlio's protocol, for a process of (another protocol|version 99): run the same dlio"
    pair[0].sendall(struct.pack("<4sBBHI", magic, version, Op.STAT, 0, 0))
    with pytest.raises(WireError, match=problem):
        wire.receive_request(pair[1])
    told = struct.unpack("<4sBBHQ", wire.receive(pair[0], 16))
    assert told[:3] == (b"dlio", version, Status.ERROR), "a client of that version can read it"
    assert re.search(problem, wire.receive(pair[0], told[4]).decode())
    pair[0].sendall(struct.pack("<4sBBHQ", magic, version, Status.OK, 0, 0))
    with pytest.raises(WireError, match=problem):
        wire.receive_reply(pair[1], 0)


def test_a_frame_that_is_cut_off_is_an_error(pair: Pair) -> None:
    pair[0].sendall(b"123")
    pair[0].shutdown(socket.SHUT_WR)
    with pytest.raises(WireError, match=r"closed in the middle of a frame: the other process has ended$"):
        wire.receive(pair[1], 4)
    with pytest.raises(WireError, match="or it does not know version 3"):  # an older dlio ends so
        wire.receive(pair[1], 4)


def test_a_peer_that_trickles_bytes_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0

    class Trickle:
        """Sends a byte every half second, which no timeout of a socket notices."""

        def gettimeout(self) -> float:
            return 3.0

        def recv_into(self, target: memoryview, num_bytes: int, flags: int) -> int:
            nonlocal now
            now += 0.5
            target[:1] = b"x"
            return 1

    monkeypatch.setattr(world, "monotonic", lambda: now)
    with pytest.raises(TimeoutError, match="less than"):
        wire.receive(Trickle(), 100)  # type: ignore[arg-type]
    assert now < 5


@pytest.mark.parametrize("body", [b"", b"1234"])
def test_a_connection_that_stalls_is_given_up(pair: Pair, body: bytes) -> None:
    world.limit(pair[1], 0.1)
    pair[0].sendall(body)
    with pytest.raises(TimeoutError, match="stalled"):
        wire.receive(pair[1], 8)
    with pytest.raises(TimeoutError, match="stalled"):
        wire.send_reply(pair[1], Status.OK, bytes(8 << 20))


def test_a_file_that_has_shrunk_ends_the_connection(pair: Pair, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"1234")
    with (tmp_path / "file").open("rb") as file, pytest.raises(WireError, match="shrunk to 4 bytes"):
        wire.send_file(pair[0], file.fileno(), 1, 9)
    assert wire.receive(pair[1], 3) == b"234"


spans = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)).map(lambda pair: (pair[0], pair[0] + pair[1])))


@given(spans, st.integers(1, 40))
def test_requests_keep_their_bounds_and_the_order(ranges: list[tuple[int, int]], most: int) -> None:
    requests = list(wire.in_requests(Op.READ, 3, ranges, most))
    assert all(request.num_bytes <= most and request.op == Op.READ and request.file == 3 for request in requests)
    asked = [byte for request in requests for begin, end in request.spans for byte in range(begin, end)]
    assert asked == [byte for begin, end in ranges for byte in range(begin, end)]
