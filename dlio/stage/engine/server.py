"""The agent's server: what it answers to loaders of its node, and to other nodes."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from dlio.io import world
from dlio.stage.engine.failures import FullError
from dlio.stage.engine.fetch import Fetching
from dlio.stage.engine.fill import Fill
from dlio.stage.engine.relay import Relay
from dlio.stage.engine.store import Store
from dlio.stage.meeting.meeting import Meeting
from dlio.stage.meeting.peer import Peer
from dlio.stage.planning.plan import Plan
from dlio.stage.protocol import wire
from dlio.stage.protocol.connection import is_node, node_of
from dlio.stage.protocol.lobby import Listener
from dlio.stage.protocol.serving import Serving
from dlio.stage.protocol.wire import Op, Origin, Request, Status, WireError

_SHOWN_NODES = 100  # which mostly fit into `wire.MAX_STAT`


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
        self.sent_bytes = 0
        self._serving = Serving(listeners, self._prepared, self._left)

    @property
    def idle_seconds(self) -> float:
        """For how long no loader has been connected; other nodes do not count."""
        return self._serving.idle_seconds

    def close(self) -> None:
        """Stops listening, and ends all connections."""
        self._serving.close()

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

    def _left(self, client: bytes) -> None:
        """Forgets the order of a client that has no connection any more."""
        with self._lock:
            self._orders.pop(client, None)

    def stat(self) -> dict[str, Any]:
        """Returns how far this node and the others are; see dlio/stage/client/client.py."""
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
                origin, begin = Origin.DISK, spans[0][0] if spans else 0
                if request.op == Op.READ or (
                    request.op in (Op.SERVE, Op.AHEAD) and self._fetching.owns(number, begin, beat)
                ):
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
