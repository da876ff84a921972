"""The agent's listener: a blocking thread for each connection whose client has proved the token."""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Protocol

from dlio.errors import DlioError
from dlio.stage.live import wire
from dlio.stage.live.agent.failures import GIVE_UP_SECONDS, FullError, LaterError
from dlio.stage.live.agent.fill import LATER_SECONDS
from dlio.stage.live.agent.near_and_far import NearAndFar
from dlio.stage.live.agent.store import Store
from dlio.stage.live.connection import Address, RefusedError, accept, is_node
from dlio.stage.live.wire import Op, Origin, Request, Status, WireError

_MAX_UNPROVEN = 64  # connections in their first two seconds
MAX_CONNECTIONS = 1024
_PASSED_THROUGH = 4  # requests at a time, of up to `wire.MAX_READ` each

_log = logging.getLogger(__name__)


class Surroundings(Protocol):
    """What the server asks its agent."""

    def owns(self, number: int) -> bool:
        """Returns whether this node is to read a file from the source."""

    def fetch(self, number: int, begin: int, target: memoryview, only_source: bool) -> Origin:
        """Fills `target` with a span of a file, from another node or the source; raises StorageError."""

    def order(self, client: bytes, first: int, shards: list[int]) -> None:
        """Takes a part of the order in which a client first uses the shards."""

    def left(self, client: bytes) -> None:
        """Notes that a client has no connection any more."""

    def stat(self) -> dict[str, Any]:
        """Returns how far the agent is."""


class Server:
    """Listens until it is closed.

    Args:
        address: to listen on; port 0 for any.
        token: the job's.
        content: the content id of the data set.
        store: the files that this node keeps.
        fill: fetches them.
        agent: what else is known.
    """

    def __init__(
        self, address: Address, token: bytes, content: str, store: Store, fill: NearAndFar, agent: Surroundings
    ) -> None:
        self._token, self._content = token, content
        self._store, self._fill, self._agent = store, fill, agent
        self._listener = socket.create_server(address, backlog=256)
        self.address: Address = self._listener.getsockname()[:2]
        self._lock = threading.Lock()
        self._connections: dict[socket.socket, bytes] = {}
        self._last_used = time.monotonic()
        self._passing = threading.Semaphore(_PASSED_THROUGH)
        self._refused: set[str] = set()
        self.sent_bytes = 0
        threading.Thread(target=self._listen, name="dlio-listen", daemon=True).start()

    @property
    def idle_seconds(self) -> float:
        """For how long no loader has been connected; other nodes do not count."""
        with self._lock:
            is_used = any(client and not is_node(client) for client in self._connections.values())
            return 0.0 if is_used else time.monotonic() - self._last_used

    def close(self) -> None:
        """Stops listening, and ends all connections."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # close alone does not wake the thread that accepts
        self._listener.close()
        with self._lock:
            open_ones = list(self._connections)
        for peer in open_ones:
            with suppress(OSError):
                peer.shutdown(socket.SHUT_RDWR)

    def _listen(self) -> None:
        while True:
            try:
                peer, address = self._listener.accept()
            except OSError:
                if self._listener.fileno() < 0:
                    return
                time.sleep(0.1)  # out of descriptors
                continue
            with self._lock:
                unproven = sum(not client for client in self._connections.values())
                is_full = len(self._connections) >= MAX_CONNECTIONS or unproven >= _MAX_UNPROVEN
                if not is_full:
                    self._connections[peer] = b""
            if is_full or not self._begin(peer, address[0]):
                peer.close()

    def _begin(self, peer: socket.socket, host: str) -> bool:
        """Lets a thread answer a client; returns whether one could start."""
        try:
            threading.Thread(target=self._converse, args=(peer, host), name="dlio-serve", daemon=True).start()
        except RuntimeError:  # a limit of threads
            with self._lock:
                del self._connections[peer]
            return False
        return True

    def _converse(self, peer: socket.socket, host: str) -> None:
        """Answers one client until it leaves."""
        client = b""
        try:
            client = accept(peer, self._token, self._content)
            with self._lock:
                self._connections[peer] = client
            while _wait_for_bytes(peer):
                self._answer(peer, wire.receive_request(peer), client)
        except (RefusedError, WireError) as error:
            self._complain(host, error)
        except OSError:
            pass  # the client has left, or is too slow
        finally:
            with self._lock:
                del self._connections[peer]
                self._last_used = time.monotonic() if client and not is_node(client) else self._last_used
                is_gone = client not in self._connections.values()
            peer.close()
            if client and is_gone:
                self._agent.left(client)

    def _complain(self, host: str, error: Exception) -> None:
        """Logs a client's mistake, once for each host and kind."""
        if len(self._refused) < MAX_CONNECTIONS and (line := f"{host}: {error}") not in self._refused:
            self._refused.add(line)
            _log.warning("%s", line)

    def _answer(self, peer: socket.socket, request: Request, client: bytes) -> None:
        """Answers one request; raises OSError if the connection fails."""
        try:
            answer = self._prepared(peer, request, client)
        except DlioError as error:
            wire.send_error(peer, f"{os.uname().nodename}: {error.text}")
            return
        answer()

    def _prepared(self, peer: socket.socket, request: Request, client: bytes) -> Callable[[], None]:
        """Does what is asked, and returns what sends the reply.

        Raises:
            DlioError: it cannot be done.
            OSError: the connection failed.
        """
        beat = lambda: wire.send_reply(peer, Status.WAIT)  # noqa: E731
        if request.op == Op.STAT:
            body = json.dumps(self._agent.stat()).encode()[: wire.MAX_STAT]
            return lambda: wire.send_reply(peer, Status.OK, body)
        if request.op == Op.ORDER:
            self._agent.order(client, request.file, [shard for shard, _ in request.spans])
            return lambda: wire.send_reply(peer, Status.OK)
        self._check(request)
        if request.op in (Op.NEED, Op.BAD):
            return self._bring(peer, request, beat)
        return self._send(peer, request, beat)

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

    def _bring(self, peer: socket.socket, request: Request, beat: Callable[[], None]) -> Callable[[], None]:
        if request.file not in self._store:
            return lambda: wire.send_reply(peer, Status.ELSEWHERE)
        bring = self._fill.need if request.op == Op.NEED else self._fill.again
        try:
            origin = bring(request.file, request.spans, beat)
        except FullError:
            return lambda: wire.send_reply(peer, Status.ELSEWHERE)
        return lambda: wire.send_reply(peer, Status.OK, origin=origin)

    def _send(self, peer: socket.socket, request: Request, beat: Callable[[], None]) -> Callable[[], None]:
        number, spans = request.file, request.spans
        with suppress(FullError):
            if number in self._store:
                origin = Origin.DISK
                if request.op == Op.READ or (request.op == Op.SERVE and self._agent.owns(number)):
                    origin = self._fill.need(number, spans or [(0, 0)], beat, by_loader=request.op == Op.READ)
                elif self._store.missing(number, spans):
                    return lambda: wire.send_reply(peer, Status.ELSEWHERE)
                return lambda: self._send_file(peer, request, origin)
        if request.op != Op.READ:
            return lambda: wire.send_reply(peer, Status.ELSEWHERE)
        with _beating(beat):
            data, origin = self._passed_through(request)
        return lambda: wire.send_reply(peer, Status.OK, data, origin=origin)

    def _send_file(self, peer: socket.socket, request: Request, origin: Origin) -> None:
        with self._store.opened(request.file) as descriptor, open(descriptor, "rb", 0, closefd=False) as file:
            wire.send_reply(peer, Status.OK, origin=origin, length=request.num_bytes)
            for begin, end in request.spans:
                if begin < end and peer.sendfile(file, begin, end - begin) != end - begin:
                    raise WireError(f"file {request.file} has shrunk")
        if request.op != Op.READ:
            with self._lock:
                self.sent_bytes += request.num_bytes

    def _passed_through(self, request: Request) -> tuple[bytearray, Origin]:
        """Returns the ranges of a file that this node does not keep, and where they came from; raises StorageError."""
        with self._passing:
            data, origin = bytearray(request.num_bytes), Origin.DISK
            target = memoryview(data)
            for begin, end in request.spans:
                origin = max(origin, self._fetched(request.file, begin, target[: end - begin]))
                target = target[end - begin :]
            return data, origin

    def _fetched(self, number: int, begin: int, target: memoryview) -> Origin:
        while True:
            try:
                return self._agent.fetch(number, begin, target, False)
            except LaterError:  # for some seconds at the agent's start
                time.sleep(LATER_SECONDS)


@contextmanager
def _beating(beat: Callable[[], None]) -> Iterator[None]:
    """Tells a client that its answer takes longer, but not for ever: the source may hang."""
    over = threading.Event()

    def work() -> None:
        deadline = time.monotonic() + GIVE_UP_SECONDS
        with suppress(OSError):  # the client has left
            while not over.wait(wire.BEAT_SECONDS) and time.monotonic() < deadline:
                beat()

    thread = threading.Thread(target=work, name="dlio-beat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _wait_for_bytes(peer: socket.socket) -> bool:
    """Waits for the next request, for ever; returns whether there is one."""
    peer.settimeout(None)
    has_more = bool(peer.recv(1, socket.MSG_PEEK))
    peer.settimeout(wire.STALL_SECONDS)
    return has_more
