"""The frames between an agent and its clients: loaders of its node, and the agents of other nodes.

    request   magic, version, op, number of ranges, file number; then offset and length of each range
    reply     magic, version, status, origin, length of the body; then the body

Files are numbered in the order of the manifest, shard by shard. No path and no name crosses the wire. All lengths are
bounded before anything is allocated. Numbers are little-endian.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from dlio.errors import StorageError
from dlio.io import world
from dlio.io.files import Span

CONNECT_SECONDS = 2.0  # to connect to a node and to prove the token
PERSIST_SECONDS = 30.0  # in which a loader tries again to connect to an agent that has no room
STALL_SECONDS = 10.0  # without a byte
BEAT_SECONDS = 2.0  # between two signs that the answer takes longer
SILENCE_SECONDS = 4.0  # of another node, or without room there: then the next one is asked
LEAST_RATE = 1 << 20  # bytes a second: what comes more slowly is taken for stalled
MAX_RANGES = 4096
MAX_READ = 8 << 20  # bytes that one request reads
MAX_TEXT = 4 << 10
MAX_STAT = 64 << 10
MOST_DIGESTS = 4096  # of one reply

_MAGIC, _VERSION = b"dlio", 3
_SAME = "run the same dlio in all processes of a job"
_HEAD = struct.Struct("<4sBBHI")
_RANGE = struct.Struct("<QQ")
_REPLY = struct.Struct("<4sBBHQ")


class Op(IntEnum):
    """What is asked."""

    NEED = 1  # make the ranges present on this node; no range: the whole file, under its final name
    READ = 2  # send the ranges, wherever they are
    ORDER = 3  # shards in the order of their first use; `file` is the position of the first of them
    BAD = 4  # the ranges failed their checksums: fetch them again from the source
    STAT = 5  # send how far the agent is, as JSON
    SERVE = 6  # of an agent: send the ranges if this node keeps them, and read them from the source if it must
    HELD = 7  # of an agent: send the ranges if they are here already
    AHEAD = 8  # as SERVE, after all that readers wait for
    PEER = 9  # of a node: send what it tells the others of itself, as JSON; the ranges are of nodes that have all
    DIGESTS = 10  # of a node: send the digests that it has found of files from `file` on, 16 bytes each
    LIST = 11  # of a node: send the list of a folder, compressed; made after this was asked (meeting/listing.py)


class Status(IntEnum):
    """The kind of a reply."""

    OK = 0
    ELSEWHERE = 1  # this node does not keep the file, or cannot list the folder
    ERROR = 2  # the body is a text of at most MAX_TEXT bytes
    WAIT = 3  # still working; another reply follows


class Origin(IntEnum):
    """Where bytes came from: the farthest place of those of a request."""

    DISK = 0
    PEER = 1
    SOURCE = 2


_OPS, _STATUSES, _ORIGINS = frozenset(Op), frozenset(Status), frozenset(Origin)


class Reply(NamedTuple):
    """The head of a reply; `length` bytes follow."""

    status: Status
    origin: Origin
    length: int


class WireError(StorageError):
    """The other end does not follow the protocol, or was cut off."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request.

    Attributes:
        op: what is asked.
        file: the file's number.
        spans: where the ranges begin and end; for ORDER the shards' numbers, each with an end of the same value.
    """

    op: Op
    file: int = 0
    spans: tuple[Span, ...] = ()

    @property
    def num_bytes(self) -> int:
        """The length of all ranges."""
        return sum(end - begin for begin, end in self.spans)


def _send(peer: world.Socket, data: bytes | bytearray, flags: int = 0) -> None:
    try:
        peer.sendall(data, flags)
    except BlockingIOError as error:
        raise _stalled() from error


def _stalled() -> TimeoutError:
    """Returns the error of a call that the kernel has ended, as a timeout of Python's does."""
    return TimeoutError("the connection stalled")


def send_request(peer: world.Socket, request: Request) -> None:
    """Sends a request; raises OSError if the connection fails."""
    head = _HEAD.pack(_MAGIC, _VERSION, request.op, len(request.spans), request.file)
    _send(peer, head + b"".join(_RANGE.pack(begin, end - begin) for begin, end in request.spans))


def receive_request(peer: world.Socket) -> Request:
    """Returns the next request; raises WireError if it is none, OSError if the connection fails."""
    magic, version, op, count, file = _HEAD.unpack(receive(peer, _HEAD.size))
    try:
        _check(magic, version)
    except WireError as error:  # the head of a reply is the same in all versions
        _send(peer, _REPLY.pack(_MAGIC, version, Status.ERROR, Origin.DISK, len(error.text)) + error.text.encode())
        raise
    if op not in _OPS or count > MAX_RANGES:
        raise WireError(
            f"a request of op {op} with {count} ranges: expected op 1 to {len(Op)}, at most {MAX_RANGES} ranges"
        )
    ranges = _RANGE.iter_unpack(receive(peer, count * _RANGE.size))
    return Request(Op(op), file, tuple((offset, offset + length) for offset, length in ranges))


def send_reply(
    peer: world.Socket,
    status: Status,
    body: bytes | bytearray = b"",
    *,
    origin: Origin = Origin.DISK,
    length: int | None = None,
) -> None:
    """Sends a reply, or with a `length` its head only; raises OSError if the connection fails."""
    head = _REPLY.pack(_MAGIC, _VERSION, status, origin, len(body) if length is None else length)
    _send(peer, head, world.MSG_MORE if body or length else 0)
    if body:
        _send(peer, body)  # as it is: a copy for each client of a long list would take memory


def send_file(peer: world.Socket, descriptor: int, begin: int, end: int) -> None:
    """Sends a range of a file past this process's memory; raises WireError if it is shorter, OSError as a send."""
    while begin < end:
        try:
            sent = world.send_file(peer, descriptor, begin, end - begin)
        except BlockingIOError as error:
            raise _stalled() from error
        if not sent:
            raise WireError(f"a file has shrunk to {begin:,} bytes")
        begin += sent


def send_error(peer: world.Socket, problem: str) -> None:
    """Sends why a request failed; raises OSError if the connection fails."""
    send_reply(peer, Status.ERROR, problem.encode(errors="replace")[:MAX_TEXT])


def receive_reply(peer: world.Socket, limit: int) -> Reply:
    """Returns the head of a reply with a body of at most `limit` bytes, which the caller receives.

    Raises WireError if it is not a reply, or too long, and OSError if the connection fails.
    """
    magic, version, status, origin, length = _REPLY.unpack(receive(peer, _REPLY.size))
    _check(magic, version)
    allowed = limit if status == Status.OK else MAX_TEXT if status == Status.ERROR else 0
    if status not in _STATUSES or origin not in _ORIGINS or length > allowed:
        raise WireError(f"a reply of status {status} and {length} bytes: expected at most {allowed} bytes")
    return Reply(Status(status), Origin(origin), length)


def _check(magic: bytes, version: int) -> None:
    if magic != _MAGIC or version != _VERSION:
        other = f"version {version}" if magic == _MAGIC else "another protocol"
        raise WireError(
            f"this message comes from version {_VERSION} of dlio's protocol, for a process of {other}: {_SAME}"
        )


def receive(peer: world.Socket, num_bytes: int) -> bytes:
    """Returns exactly this many bytes; raises WireError if the connection ends before."""
    data = bytearray(num_bytes)
    receive_into(peer, memoryview(data))
    return bytes(data)


def receive_into(peer: world.Socket, target: memoryview) -> None:
    """Fills `target`; raises WireError if the connection ends before, OSError if it fails or is too slow."""
    expected = len(target)
    deadline = world.monotonic() + (peer.gettimeout() or STALL_SECONDS) + expected / LEAST_RATE
    while target:
        try:
            count = peer.recv_into(target, 0, world.MSG_WAITALL)
        except BlockingIOError as error:
            raise _stalled() from error
        if not count:
            if len(target) < expected:
                raise WireError("the connection was closed in the middle of a frame: the other process has ended")
            ended = f"the other process has ended, or it does not know version {_VERSION} of dlio's protocol"
            raise WireError(f"the connection was closed: {ended}; {_SAME}")
        target = target[count:]
        if target and world.monotonic() > deadline:
            raise TimeoutError(f"less than {LEAST_RATE:,} bytes arrived in a second")


def in_requests(op: Op, file: int, spans: Sequence[Span], most: int = 1 << 63) -> Iterator[Request]:
    """Yields requests for the spans, in order, each with at most `most` bytes and `MAX_RANGES` ranges."""
    taken: list[Span] = []
    room = most
    for begin, end in spans:
        if begin == end:
            taken.append((begin, end))  # has a file begun
        while begin < end:
            step = min(end - begin, room)
            taken.append((begin, begin + step))
            begin, room = begin + step, room - step
            if not room or len(taken) == MAX_RANGES:
                yield Request(op, file, tuple(taken))
                taken, room = [], most
    if taken:
        yield Request(op, file, tuple(taken))
