"""What the processes of a node ask the agent of a copy: loaders what they need next, `--status` how far it is.

A `Client` is thread-safe: each request takes its own connection, and connections are kept for the next ones. A forked
child makes its own connections. An agent that has ended is searched for again, or started again, once.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Any

from dlio.dataset.manifest import NAME
from dlio.errors import StorageError, UsageError
from dlio.io import world
from dlio.io.arrivals import NoRoomError
from dlio.io.sizes import counted, format_size
from dlio.stage.copies.folder import StagedFolder
from dlio.stage.copies.live_folder import LiveFolder
from dlio.stage.copies.locations import checked_dest, known_folders, safe_copies
from dlio.stage.meeting.peer import shown as shown_record
from dlio.stage.protocol import unix, wire
from dlio.stage.protocol.connection import CLIENT_BYTES, AgentError, Answer, Connection, ConnectionPool
from dlio.stage.protocol.wire import Op, Origin, Reply, Request, Span, Status, WireError
from dlio.urls import is_url, shown

_KEPT = 32  # connections that wait for the next request
_TRIES = 3  # agents may be killed one after the other
_OLD_SECONDS = 3  # after which it is said how old the figures of another node are


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
        """Returns how far the agent is: see `status`."""

        def ask(connection: Connection) -> dict[str, Any]:
            body = bytearray(connection.ask(Request(Op.STAT), limit=wire.MAX_STAT).length)
            connection.receive_into(memoryview(body))
            found: dict[str, Any] = json.loads(body)
            return found

        return self._with_connection(ask)

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


def status(content_id: str, dest: str | os.PathLike[str] | None = None) -> list[dict[str, Any]]:
    """Returns the state of each of this user's copies of a data set on this node that is complete or being filled.

    By default it checks all folders of this node that may hold copies.

    Returns:
        For each copy its `path`, whether it `is_complete`, and if an agent runs, what `Client.stat` gives: the bytes
        read from the source, received from and sent to other nodes, and for each node in `nodes` its bytes, rate, time
        left, what it waits for, and how long ago it told that.
    """
    named = None if dest is None else checked_dest(dest)
    return [found for folder in copies(content_id, named) if (found := state(folder))]


def status_from(source: str | os.PathLike[str], dest: str | os.PathLike[str] | None = None) -> list[dict[str, Any]]:
    """Returns `status` of the copies that were staged from a folder or a URL, which need not be readable now."""
    name = shown(os.fspath(source)) if is_url(source) else os.path.abspath(source)  # noqa: PTH100
    staged = name.removesuffix(f"/{NAME}")
    return [found for folder in copies("", dest) if _is_from(folder, staged) and (found := state(folder))]


def _is_from(folder: StagedFolder, source: str) -> bool:
    try:
        return folder.origin() == source
    except UsageError:
        return False


def copies(content_id: str, dest: str | os.PathLike[str] | None) -> Iterator[StagedFolder]:
    """Returns the copies of a data set of which `status` tells."""
    named = known_folders() if dest is None else [Path(dest).absolute()]
    return safe_copies(content_id, named)


def state(folder: StagedFolder) -> dict[str, Any] | None:
    """Returns the state of a copy, None if it is neither complete nor being filled."""
    found = answer(folder)
    head = {"path": str(folder.path), "is_complete": folder.has_manifest()}
    if found is None:
        return head if head["is_complete"] else None
    return head | found | {"nodes": [shown_record(node) for node in found["nodes"]]}


def answer(folder: StagedFolder) -> dict[str, Any] | None:
    """Returns what `Client.stat` gives; None if no agent fills or serves the copy, or it does not answer.

    Raises StorageError if it is of another version of dlio.
    """
    if LiveFolder(folder).agent() is None:
        return None
    with closing(Client(folder)) as client, suppress(StorageError):  # it ended just now
        return client.stat()
    return None


def in_one_word(copy: Mapping[str, Any]) -> str:
    """Returns whether a copy is complete, as `status` gives it; a cache that is smaller than the data set never is."""
    if copy["is_complete"]:
        return "complete"
    if copy.get("keeps_all", True):
        return "being filled"
    is_full = copy["nodes"][0]["is_complete"]
    return f"a cache that is smaller than the data set, {'full' if is_full else 'being filled'}"


def in_words(node: Mapping[str, Any]) -> str:
    """Returns how far one node is, as `status` gives it in `nodes`."""
    done, total = format_size(node["staged_bytes"]), format_size(node["total_bytes"])
    left = "" if node["is_complete"] or node["seconds_left"] is None else f", {node['seconds_left']:.0f} s left"
    left = f", as it was {counted(age, 'second')} ago" if (age := node["told_seconds"]) >= _OLD_SECONDS else left
    waiting = f", waits: {node['waiting_for']}" if node["waiting_for"] else ""
    return f"{done} of {total}, {format_size(node['bytes_per_second'])}/s{left}{waiting}"
