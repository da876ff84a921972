"""The agent's server: what it answers to loaders of its node, and to other nodes."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Protocol

from dlio.io import world
from dlio.stage.engine.failures import FullError
from dlio.stage.engine.fill import Fill
from dlio.stage.engine.relay import Relay
from dlio.stage.engine.store import Store
from dlio.stage.protocol import wire
from dlio.stage.protocol.connection import is_node, node_of
from dlio.stage.protocol.lobby import Listener
from dlio.stage.protocol.serving import Serving
from dlio.stage.protocol.wire import Op, Origin, Request, Span, Status, WireError


class AgentState(Protocol):
    """The agent's state as its server asks for it."""

    def owns(self, number: int, beat: Callable[[], None]) -> bool:
        """Returns whether this node is to read a file from the source; calls `beat` before it asks another node."""

    def order(self, client: bytes, first: int, shards: list[int]) -> None:
        """Takes a part of the order in which a client first uses the shards."""

    def left(self, client: bytes) -> None:
        """Notes that a client has no connection any more."""

    def stat(self) -> dict[str, Any]:
        """Returns how far the agent is."""

    def heard(self, node: int) -> None:
        """Notes that another node has asked something."""

    def asked_by(self, node: int, complete: Sequence[Span]) -> dict[str, Any]:
        """Returns what this node tells another, which knows some nodes to be complete."""


class Server:
    """Listens until it is closed: `fill` fetches the files that `store` keeps, `relay` reads the others."""

    def __init__(
        self, listeners: Sequence[Listener], store: Store, fill: Fill, relay: Relay, agent: AgentState
    ) -> None:
        self._store, self._fill, self._relay, self._agent = store, fill, relay, agent
        self._lock = world.lock()
        self.sent_bytes = 0
        self._serving = Serving(listeners, self._prepared, agent.left)

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
        if is_node(client):
            self._agent.heard(node_of(client))
        if request.op == Op.STAT:
            body = self._stat()
            return lambda: wire.send_reply(peer, Status.OK, body)
        if request.op == Op.PEER:
            body = json.dumps(self._agent.asked_by(node_of(client), request.spans)).encode()
            return lambda: wire.send_reply(peer, Status.OK, body)
        if request.op == Op.DIGESTS:
            body = self._store.learned.packed(self._store.listed[request.file : request.file + wire.MOST_DIGESTS])
            return lambda: wire.send_reply(peer, Status.OK, body)
        if request.op == Op.ORDER:
            self._agent.order(client, request.file, [shard for shard, _ in request.spans])
            return lambda: wire.send_reply(peer, Status.OK)
        self._check(request)
        if request.op in (Op.NEED, Op.BAD):
            return self._bring(peer, request, beat)
        return self._send(peer, request, beat)

    def _stat(self) -> bytes:
        """Returns how far the agent is, as JSON: without the last nodes if all of them do not fit."""
        found = self._agent.stat()
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
                if request.op == Op.READ or (request.op in (Op.SERVE, Op.AHEAD) and self._agent.owns(number, beat)):
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
