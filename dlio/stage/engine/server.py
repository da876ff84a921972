"""The agent's server: a blocking thread for each connection whose client has been verified (lobby.py)."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from dlio.errors import DlioError, MissingError
from dlio.io import world
from dlio.stage.engine.failures import FullError
from dlio.stage.engine.fetch import Fetching
from dlio.stage.engine.fill import Fill
from dlio.stage.engine.lobby import Listener, Lobby
from dlio.stage.engine.relay import Relay
from dlio.stage.engine.store import Store
from dlio.stage.meeting.meeting import Meeting
from dlio.stage.meeting.peer import Peer
from dlio.stage.planning.plan import Plan
from dlio.stage.protocol import wire
from dlio.stage.protocol.connection import is_node, node_of
from dlio.stage.protocol.wire import Op, Origin, Request, Status, WireError

MAX_CONNECTIONS = 1024
_SHOWN_NODES = 100  # which mostly fit into `wire.MAX_STAT`

_log = logging.getLogger(__name__)


class Server:
    """Listens until it is closed.

    Args:
        listeners: where clients come in.
        plan, meeting: the node's part, and the other nodes, if there are any.
        store, fill, relay, fetching: the files that the node keeps, what brings them, what reads the others, and where
            all of them come from.
        peer: returns the node's record.
    """

    def __init__(
        self,
        listeners: Sequence[Listener],
        plan: Plan,
        meeting: Meeting | None,
        store: Store,
        fill: Fill,
        relay: Relay,
        fetching: Fetching,
        peer: Callable[[], Peer],
    ) -> None:
        self._plan, self._meeting, self._peer = plan, meeting, peer
        self._store, self._fill, self._relay, self._fetching = store, fill, relay, fetching
        self._lock = world.lock()
        self._orders: dict[bytes, list[int]] = {}  # in which clients first use the shards
        self._connections: dict[world.Socket, bytes] = {}
        self._idle: dict[world.Socket, None] = {}  # of other nodes, the one that has waited longest first
        self._last_used = world.monotonic()
        self._refused: set[str] = set()
        self.sent_bytes = 0
        self._lobby = Lobby(listeners, self._enter, self._complain)

    @property
    def idle_seconds(self) -> float:
        """For how long no loader has been connected; other nodes do not count."""
        with self._lock:
            is_used = any(not is_node(client) for client in self._connections.values())
            return 0.0 if is_used else world.monotonic() - self._last_used

    def close(self) -> None:
        """Stops listening, and ends all connections."""
        self._lobby.close()
        with self._lock:
            open_ones = list(self._connections)
        for peer in open_ones:
            with suppress(OSError):
                peer.shutdown(world.SHUT_RDWR)

    def _enter(self, peer: world.Socket, host: str, client: bytes, last: bytes) -> None:
        """Lets a thread answer a verified client, which is sent the last bytes of its verification first."""
        world.limit(peer, wire.STALL_SECONDS)
        try:
            if self._has_room(peer, client):
                peer.sendall(last)
                world.start(partial(self._converse, peer, host, client), "dlio-serve")
                return
        except (OSError, MissingError):  # the client has left, or a limit of threads
            with self._lock:
                self._connections.pop(peer, None)
        peer.close()

    def _has_room(self, peer: world.Socket, client: bytes) -> bool:
        """Adds a connection; if there are too many, the one of another node that has been idle for longest ends."""
        with self._lock:
            if len(self._connections) >= MAX_CONNECTIONS:
                if not self._idle:
                    return False
                oldest = next(iter(self._idle))
                del self._idle[oldest], self._connections[oldest]
                with suppress(OSError):
                    oldest.shutdown(world.SHUT_RDWR)  # its thread ends, and the node connects again when it must
            self._connections[peer] = client
            return True

    def _converse(self, peer: world.Socket, host: str, client: bytes) -> None:
        """Answers one client until it leaves."""
        try:
            while self._wait_for_bytes(peer, client):
                self._answer(peer, wire.receive_request(peer), client)
        except WireError as error:
            self._complain(host, str(error))
        except OSError:
            pass  # the client has left, or is too slow
        finally:
            with self._lock:
                self._connections.pop(peer, None)
                self._idle.pop(peer, None)
                self._last_used = self._last_used if is_node(client) else world.monotonic()
                if client not in self._connections.values():
                    self._orders.pop(client, None)
            peer.close()

    def _wait_for_bytes(self, peer: world.Socket, client: bytes) -> bool:
        """Waits for the next request, without a limit; returns whether there is one."""
        if is_node(client):
            with self._lock:
                if peer in self._connections:  # else it was ended to make room
                    self._idle[peer] = None
        while True:
            with suppress(BlockingIOError):  # `world.limit`
                has_more = bool(peer.recv(1, world.MSG_PEEK))
                break
        if is_node(client):
            with self._lock:
                self._idle.pop(peer, None)
        return has_more

    def _complain(self, host: str, mistake: str) -> None:
        """Logs a client's mistake, once for each host and kind."""
        if len(self._refused) < MAX_CONNECTIONS and (line := f"{host}: {mistake}") not in self._refused:
            self._refused.add(line)
            _log.warning("%s", line)

    def _answer(self, peer: world.Socket, request: Request, client: bytes) -> None:
        """Answers one request; raises OSError if the connection fails."""
        try:
            answer = self._prepared(peer, request, client)
        except DlioError as error:
            wire.send_error(peer, f"{world.host()}: {error.text}")
            return
        answer()

    def _prepared(self, peer: world.Socket, request: Request, client: bytes) -> Callable[[], None]:
        """Carries out a request, and returns a call that sends the reply; raises DlioError, OSError."""
        beat = lambda: wire.send_reply(peer, Status.WAIT)  # noqa: E731
        if is_node(client) and self._meeting:
            self._meeting.heard(node_of(client))
        if request.op == Op.STAT:
            body = self._stat()
            return lambda: wire.send_reply(peer, Status.OK, body)
        if request.op == Op.PEER:
            own, meeting = self._peer(), self._meeting
            record = meeting.asked_by(node_of(client), request.spans, own) if meeting else own.to_json()
            body = json.dumps(record).encode()
            return lambda: wire.send_reply(peer, Status.OK, body)
        if request.op == Op.DIGESTS:
            body = self._store.learned.packed(self._store.listed[request.file : request.file + wire.MOST_DIGESTS])
            return lambda: wire.send_reply(peer, Status.OK, body)
        if request.op == Op.ORDER:
            self._follow(client, request)
            return lambda: wire.send_reply(peer, Status.OK)
        self._check(request)
        if request.op in (Op.NEED, Op.BAD):
            return self._bring(peer, request, beat)
        return self._send(peer, request, beat)

    def _follow(self, client: bytes, request: Request) -> None:
        """Takes a part of the order in which a client first uses the shards."""
        with self._lock:
            self._orders.setdefault(client, [])[request.file :] = [shard for shard, _ in request.spans]
            orders = list(self._orders.values())
        self._fill.follow(self._plan.order(orders))

    def stat(self) -> dict[str, Any]:
        """Returns how far this node and the others are; see dlio/stage/client/status.py."""
        meeting = self._meeting
        others = [peer for peer in meeting.known() if meeting.peer(peer.node)] if meeting else []
        return {
            "node": self._plan.node,
            "num_nodes": self._plan.num_nodes,
            "source_bytes": self._fetching.source_bytes,
            "peer_bytes": self._fetching.peer_bytes,
            "sent_bytes": self.sent_bytes,
            "keeps_all": self._plan.is_whole,
            "nodes": [peer.to_json() for peer in (self._peer(), *others[:_SHOWN_NODES])],
        }

    def _stat(self) -> bytes:
        """Returns `stat` as JSON: without the last nodes if all of them do not fit."""
        found = self.stat()
        while len(body := json.dumps(found).encode()) > wire.MAX_STAT:
            found["nodes"].pop()
        return body

    def _check(self, request: Request) -> None:
        """Raises WireError for ranges that do not lie in a file."""
        listed = self._store.listed
        if request.file >= len(listed):
            raise WireError(f"file {request.file} was asked for, of {len(listed)}")
        size = listed[request.file].num_bytes
        if any(not 0 <= begin <= end <= size for begin, end in request.spans):
            raise WireError(f"a range beyond the {size:,} bytes of file {request.file} was asked for")
        if request.op not in (Op.NEED, Op.BAD) and request.num_bytes > wire.MAX_READ:
            raise WireError(f"{request.num_bytes:,} bytes were asked for at once: at most {wire.MAX_READ:,}")

    def _bring(self, peer: world.Socket, request: Request, beat: Callable[[], None]) -> Callable[[], None]:
        if request.op == Op.BAD:
            self._relay.distrust(request.file)
        if request.file not in self._store:
            return lambda: wire.send_reply(peer, Status.ELSEWHERE)
        bring = self._fill.need if request.op == Op.NEED else self._fill.again
        try:
            origin = bring(request.file, request.spans, beat)
        except FullError:
            return lambda: wire.send_reply(peer, Status.ELSEWHERE)
        return lambda: wire.send_reply(peer, Status.OK, origin=origin)

    def _send(self, peer: world.Socket, request: Request, beat: Callable[[], None]) -> Callable[[], None]:
        number, spans = request.file, request.spans
        with suppress(FullError):
            if number in self._store:
                origin = Origin.DISK
                if request.op == Op.READ or (request.op in (Op.SERVE, Op.AHEAD) and self._fetching.owns(number, beat)):
                    origin = self._fill.need(number, spans or [(0, 0)], beat, is_urgent=request.op != Op.AHEAD)
                elif self._store.missing(number, spans):
                    return lambda: wire.send_reply(peer, Status.ELSEWHERE)
                return lambda: self._send_file(peer, request, origin)
        if request.op != Op.READ:
            return lambda: wire.send_reply(peer, Status.ELSEWHERE)
        data, origin = self._relay.read(request, beat)
        return lambda: wire.send_reply(peer, Status.OK, data, origin=origin)

    def _send_file(self, peer: world.Socket, request: Request, origin: Origin) -> None:
        with self._store.opened(request.file) as descriptor:
            wire.send_reply(peer, Status.OK, origin=origin, length=request.num_bytes)
            for begin, end in request.spans:
                wire.send_file(peer, descriptor, begin, end)
        if request.op != Op.READ:
            with self._lock:
                self.sent_bytes += request.num_bytes
