"""The agent's server: what it answers to loaders of its node, and to other nodes.

It sends what the node keeps from its files, and passes through what it does not keep.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from dlio.errors import StorageError
from dlio.io import world
from dlio.io.threads import started_up_to
from dlio.stage.engine.failures import GIVE_UP_SECONDS, FullError, LaterError
from dlio.stage.engine.fetch import Fetching
from dlio.stage.engine.fill import LATER_SECONDS, Fill
from dlio.stage.engine.store import Store
from dlio.stage.meeting.meeting import Meeting
from dlio.stage.meeting.peer import Peer
from dlio.stage.protocol import wire
from dlio.stage.protocol.connection import is_node, node_of
from dlio.stage.protocol.serving import Listener, Serving
from dlio.stage.protocol.wire import Op, Origin, Request, Status, WireError

_AT_A_TIME = 8  # requests that are passed through, of up to `wire.MAX_READ` each
_SHOWN_NODES = 100  # which mostly fit into `wire.MAX_STAT`


class Server:
    """Listens until it is closed.

    Args:
        listeners: where clients come in.
        meeting: the other nodes, if there are any.
        store, fill, fetching: the files that the node keeps, what brings them, and where all files come from.
        peer: returns the node's record.
    """

    def __init__(
        self,
        listeners: Sequence[Listener],
        meeting: Meeting | None,
        store: Store,
        fill: Fill,
        fetching: Fetching,
        peer: Callable[[], Peer],
    ) -> None:
        self._meeting, self._peer = meeting, peer
        self._store, self._fill, self._fetching, self._relay = store, fill, fetching, Relay(fetching)
        self._lock = world.lock()
        self._orders: dict[bytes, list[int]] = {}  # in which clients first use the shards
        self.sent_bytes = 0
        self._serving = Serving(listeners, self._prepared, self._left)

    @property
    def idle_seconds(self) -> float:
        """For how long no loader has been connected; other nodes do not count."""
        return self._serving.idle_seconds

    def close(self) -> None:
        """Stops listening, ends all connections, and drops what is passed through."""
        self._serving.close()
        self._relay.close()

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
        self.follow()

    def follow(self) -> None:
        """Has the kept files fetched as the clients use them."""
        plan = self._fetching.plan
        with self._lock:
            orders = list(self._orders.values())
        self._fill.follow(plan.order(orders))
        if plan is not self._fetching.plan:
            self.follow()

    def _left(self, client: bytes) -> None:
        """Forgets the order of a client that has no connection any more."""
        with self._lock:
            self._orders.pop(client, None)

    def stat(self) -> dict[str, Any]:
        """Returns how far this node and the others are; see dlio/stage/client/client.py."""
        meeting, plan = self._meeting, self._fetching.plan
        others = meeting.told()[:_SHOWN_NODES] if meeting else []
        own = {**self._peer().to_json(), "told_seconds": 0, "hanging": self._fill.hanging}
        return {
            "node": plan.node,
            "num_nodes": plan.num_nodes,
            "source_bytes": self._fetching.source_bytes,
            "peer_bytes": self._fetching.peer_bytes,
            "sent_bytes": self.sent_bytes,
            "keeps_all": plan.is_whole,
            "nodes": [own, *({**peer.to_json(), "told_seconds": age} for peer, age in others)],
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
        if request.file not in self._store:
            if request.op == Op.BAD:
                self._fetching.distrust(request.file)
            return lambda: wire.send_reply(peer, Status.ELSEWHERE)
        bring = self._fill.need if request.op == Op.NEED else self._fill.again
        try:
            origin = bring(request.file, request.spans, beat)
        except FullError:
            return lambda: wire.send_reply(peer, Status.ELSEWHERE)
        return lambda: wire.send_reply(peer, Status.OK, origin=origin)

    def _send(self, peer: world.Socket, request: Request, beat: Callable[[], None]) -> Callable[[], None]:
        number, spans = request.file, request.spans
        is_home, begin = False, spans[0][0] if spans else 0
        if request.op in (Op.SERVE, Op.AHEAD):
            is_home = self._fetching.is_home(number, begin, beat)  # first: then it may be kept
        elif request.op == Op.READ and number not in self._store:
            self._fetching.has_another(self._fetching.plan, beat)
        with suppress(FullError):
            if number in self._store:
                origin = Origin.DISK
                if request.op == Op.READ or is_home:
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


@dataclass(eq=False, slots=True)
class _Reading:
    """A request that is read, or waits for its turn.

    Attributes:
        request, target: what is read, and into which memory.
        over: an event that is set once it was read, or could not be.
        latest: when it began, or its latest span came; 0 until its turn.
        origin: the farthest place that a span came from.
        error: why it could not be read.
    """

    request: Request
    target: memoryview
    over: world.Event
    latest: float = 0.0
    origin: Origin = Origin.DISK
    error: BaseException | None = None


class Relay:
    """Passes ranges through that this node does not keep, a few requests at a time; for any number of threads."""

    def __init__(self, fetching: Fetching) -> None:
        self._fetching = fetching
        self._latest = 0.0  # a span came, of any request
        self._changed = world.condition()  # notified of a request, and of the end
        self._queue: deque[_Reading] = deque()
        self._threads: list[world.Thread] = []
        self._is_closed = False

    def read(self, request: Request, beat: Callable[[], None]) -> tuple[bytearray, Origin]:
        """Returns the ranges, and where they came from; calls `beat` while this takes longer.

        Raises:
            MissingError: no thread can be started.
            StorageError: they cannot be read, or nothing has come for a while; names the node that was asked.
        """
        data, asked = bytearray(request.num_bytes), world.monotonic()
        reading = _Reading(request, memoryview(data), world.event())
        self._submit(reading)
        patience = GIVE_UP_SECONDS + max((end - begin for begin, end in request.spans), default=0) / wire.LEAST_RATE
        while not reading.over.wait(wire.BEAT_SECONDS):
            idle = world.monotonic() - (reading.latest or max(asked, self._latest))  # that of others, until its turn
            if idle > patience:
                with self._changed, suppress(ValueError):  # else it is left behind: it may hang in a read of the source
                    self._queue.remove(reading)
                raise StorageError(
                    f"{self._fetching.asked(request.file)} has sent nothing for {idle:.0f} s: see "
                    "whether it answers, then stage again"
                )
            beat()
        if reading.error:
            raise reading.error
        return data, reading.origin

    def _submit(self, reading: _Reading) -> None:
        """Lets a thread read; raises MissingError if none can be started, and StorageError once it is closed."""
        with self._changed:
            if self._is_closed:
                raise StorageError("the agent is ending: stage again")
            self._threads = self._threads or started_up_to(_AT_A_TIME, self._work, "dlio-pass")
            self._queue.append(reading)
            self._changed.notify()

    def _work(self) -> None:
        while (reading := self._next()) is not None:
            try:
                self._read(reading)
            except BaseException as error:
                reading.error = error
            reading.over.set()
            del reading  # nothing of it is kept alive while this thread waits for the next one

    def _next(self) -> _Reading | None:
        """Waits for the next request; None once this is closed."""
        with self._changed:
            while not (self._queue or self._is_closed):
                self._changed.wait()
            return None if self._is_closed else self._queue.popleft()

    def _read(self, reading: _Reading) -> None:
        """Fills the memory of a request."""
        target, number = reading.target, reading.request.file
        reading.latest = world.monotonic()
        for begin, end in reading.request.spans:
            reading.origin = max(reading.origin, self._fetched(number, begin, target[: end - begin]))
            target = target[end - begin :]
            self._latest = reading.latest = world.monotonic()

    def _fetched(self, number: int, begin: int, target: memoryview) -> Origin:
        while True:
            try:
                return self._fetching.fetch(number, begin, target)
            except LaterError:  # for some seconds at the agent's start
                world.sleep(LATER_SECONDS)

    def close(self) -> None:
        """Drops the requests that wait, and has the threads end when they can."""
        with self._changed:
            self._is_closed = True
            dropped = list(self._queue)
            self._queue.clear()
            self._changed.notify_all()
        for reading in dropped:
            reading.error = StorageError("the agent is ending: stage again")
            reading.over.set()
