"""What the processes of a node ask the agent of a copy: loaders what they need next, `--status` how far it is.

A `Client` is thread-safe: each request takes its own connection, and connections are kept for the next ones. A forked
child makes its own connections. An agent that has ended is searched for again, or started again, once.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from dlio.errors import StorageError
from dlio.io import world
from dlio.io.arrivals import NoRoomError
from dlio.io.files import Span
from dlio.stage.copies.folder import StagedFolder
from dlio.stage.copies.live_folder import LiveFolder
from dlio.stage.protocol import unix, wire
from dlio.stage.protocol.connection import CLIENT_BYTES, AgentError, Answer, Connection, ConnectionPool
from dlio.stage.protocol.wire import Op, Origin, Reply, Request, Status, WireError

_KEPT = 32  # connections that wait for the next request
_TRIES = 3  # agents may be killed one after the other


class Client:
    """A loader's way to the agent of its node; for any number of threads, and usable after a fork.

    Spans are pairs of offsets in a file, where a range begins and ends. Files are numbered in the order of the
    manifest, shard by shard.

    All methods raise StorageError, whose text names the node and what to do, if the agent cannot do what is asked, or
    has ended and cannot be started again; NoRoomError if that is for lack of room. None waits for longer than the agent
    makes progress.
    """

    def __init__(self, folder: StagedFolder, restart: Callable[[], object] | None = None) -> None:
        self._folder = LiveFolder(folder)
        self._restart = restart
        self._pool = ConnectionPool(_KEPT)
        self._process, self._name = world.pid(), world.random_bytes(CLIENT_BYTES)
        self._hangs_until = 0.0

    def need(self, file: int, spans: Sequence[Span] = ()) -> Origin | None:
        """Waits until the spans are in the file on this node; without spans, until it has its final name.

        Returns:
            Where they came from; None if this node does not keep the file: then `read` it.
        """
        origin = Origin.DISK
        for request in wire.in_requests(Op.NEED, file, spans) if spans else [Request(Op.NEED, file)]:
            reply = self._ask(request)
            if reply.status != Status.OK:
                return None
            origin = max(origin, reply.origin)
        return origin

    def read(self, file: int, spans: Sequence[Span], target: memoryview) -> Origin:
        """Fills `target` with the bytes of all spans, in order, wherever they are; returns where they came from."""
        farthest = Origin.DISK
        for request in wire.in_requests(Op.READ, file, spans, wire.MAX_READ):
            origin = self._with_connection(
                partial(Connection.read, request=request, target=target[: request.num_bytes])
            )
            if origin is None:
                raise StorageError(f"the agent of {self._folder.staged.path} does not send file {file}: stage again")
            target, farthest = target[request.num_bytes :], max(farthest, origin)
        return farthest

    def order(self, shards: Sequence[int]) -> None:
        """Sends the order in which this rank will first use the shards; replaces the order sent before."""
        for first in range(0, len(shards), wire.MAX_RANGES):
            part = shards[first : first + wire.MAX_RANGES]
            self._ask(Request(Op.ORDER, first, tuple((shard, shard) for shard in part)))

    def bad(self, file: int, spans: Sequence[Span]) -> None:
        """Reports spans that failed their checksums, and waits until they have been fetched from the source again."""
        for request in wire.in_requests(Op.BAD, file, spans):
            self._ask(request)

    def stat(self) -> dict[str, Any]:
        """Returns how far the agent is: see `status.status`."""
        ask = partial(Connection.answer, request=Request(Op.STAT), limit=wire.MAX_STAT)
        found: dict[str, Any] = json.loads(self._with_connection(ask))
        return found

    def close(self) -> None:
        """Closes the connections that no request uses; the client can be used again."""
        self._pool.close()

    def __del__(self, is_ending: Callable[[], bool] = sys.is_finalizing) -> None:
        if is_ending():
            return
        with suppress(AttributeError):
            self.close()

    def _ask(self, request: Request) -> Reply:
        return self._with_connection(partial(Connection.ask, request=request))

    def _with_connection(self, ask: Callable[[Connection], Answer]) -> Answer:
        if self._process != world.pid():  # the parent continues to use its connections
            self._process, self._name = world.pid(), world.random_bytes(CLIENT_BYTES)
            self.close()
        for attempt in range(1, _TRIES + 1):
            if world.monotonic() < self._hangs_until:
                raise self._gone(TimeoutError("it hangs"))
            try:
                return self._pool.use(ask, self._connected)
            except (AgentError, NoRoomError):
                raise
            except TimeoutError as error:
                if attempt > 1:
                    raise self._gone(error) from error
            except OSError as error:  # the first kinds are those of an agent that was killed in the middle of it
                if not isinstance(error, WireError | ConnectionError) or attempt == _TRIES:
                    raise self._gone(error) from error
        raise AssertionError

    def _connected(self) -> Connection:
        """Returns a new connection; raises OSError."""
        try:
            return self._new()
        except TimeoutError:
            self._hangs_until = world.monotonic() + wire.STALL_SECONDS  # not every thread should wait as long
            raise
        except OSError:
            if self._restart is None:
                raise
        self._restart()
        return self._new()

    def _new(self) -> Connection:
        agent = self._folder.agent()
        if agent is None:
            raise StorageError("no agent runs")
        return unix.connect(self._folder, agent.socket, self._name)

    def _gone(self, error: OSError) -> StorageError:
        agent = self._folder.agent()
        return StorageError(
            f"the agent that stages {self._folder.staged.path} on {world.host()} does not answer: "
            f"{getattr(error, 'strerror', None) or error}; its log is {self._folder.log}: "
            f"{f'end process {agent.owner.pid}, then ' if agent else ''}stage again"
        )
