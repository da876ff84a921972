"""One list of a folder for all nodes of a job that exchange files: one process lists it, and the others get the list.

A list of 100,000 files takes more than 100,000 requests to their server, so a thousand nodes must not each make one.

    by MPI       rank 0 lists the folder, and all gather the list
    by a folder  where the nodes meet (folder.py): a process asks the first node that is present, by a connection of
                 protocol/tcp.py; after several have failed, it lists the folder itself

A process gets a list that was begun after it asked. So the list is as recent as its own would be, even if the folder
has changed between two runs of a job. The first list begins once all processes have asked, once one of each node has
and no other one does for a moment, or after `JOIN_SECONDS`. Those that ask later get the next one together.
"""

from __future__ import annotations

import logging
import os
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, nullcontext
from functools import partial
from pathlib import Path

from dlio.cluster import mpi
from dlio.cluster.topology import Topology
from dlio.errors import DlioError, StorageError
from dlio.io import files, limits, world
from dlio.io.threads import Threads
from dlio.locking.owner import Owner
from dlio.stage.meeting.folder import LISTED, MeetingFolder, meeting_folder
from dlio.stage.meeting.meeting import Meeting
from dlio.stage.meeting.peer import Peer
from dlio.stage.planning.homes import home_now
from dlio.stage.protocol import tcp, wire
from dlio.stage.protocol.connection import BusyError, Connection, is_node, node_client, node_of
from dlio.stage.protocol.serving import Serving, ended_by
from dlio.stage.protocol.wire import Op, Request, Status, WireError

_PATIENCE_SECONDS = 600.0  # for a list: of 7 million files with 64 threads, if each stat takes 5 ms
_AVOID_SECONDS = 60.0  # a node that has not listed the folder in that time
_SOON_SECONDS, _LAST_SECONDS, _ROUND_SECONDS = 0.05, 0.2, 1.0
_MOST_FAILURES = 3  # of other nodes

_log = logging.getLogger(__name__)

#: Makes the list of a folder: raises DlioError.
Make = Callable[[], bytes]
#: Returns the list of the folder at an absolute path, which it or another process has made; raises DlioError.
ListOnce = Callable[[Path, Make], bytes]


@contextmanager
def by_processes(topology: Topology, *, by_folder: bool) -> Iterator[ListOnce]:
    """Yields what lists a folder once for all processes of a job, by MPI if they can agree by it.

    Args:
        topology: this process's.
        by_folder: whether they meet in a folder where they cannot; else each process lists it. Until the context is
            left, the process that has listed it answers late ones.
    """
    with ExitStack() as stack:

        def list_once(path: Path, make: Make) -> bytes:
            if everyone := mpi.processes(topology):
                return _gathered(everyone, make)
            numbers = topology.node_and_count or (topology.rank, topology.world_size)
            return stack.enter_context(_met(topology, numbers, path, make)) if by_folder else make()

        yield list_once


@contextmanager
def by_nodes(topology: Topology) -> Iterator[ListOnce]:
    """Yields as `by_processes`, for the agents of nodes: these exchange files if the launcher numbers the nodes."""
    with ExitStack() as stack:
        numbers = topology.node_and_count or (0, 1)
        yield lambda path, make: stack.enter_context(_met(topology, numbers, path, make))


def _gathered(everyone: mpi.Processes, make: Make) -> bytes:
    """Returns the list that rank 0 makes; raises its DlioError, or StorageError elsewhere and if processes are lost."""
    with Threads(1, "dlio-list") if everyone.rank == 0 else nullcontext() as threads:
        made = threads.submit(make) if threads else None

        def told() -> dict[str, str]:
            """Returns what rank 0 tells the others; nothing for a second, until the list is made."""
            try:
                error = made.exception(_ROUND_SECONDS) if made else None
            except TimeoutError:
                return {}
            if error is None:
                return {"list": made.result().decode()} if made else {}
            return {"problem": f"{world.host()}: {error.text if isinstance(error, DlioError) else repr(error)}"}

        while not (heard := everyone.gather("list", told())[0]):
            if heard is None:
                raise StorageError("process 0 of the job has ended before it had listed the folder: see its output")
        if made:
            return made.result()
    if "problem" in heard:
        raise StorageError(heard["problem"])
    return str(heard["list"]).encode()


@contextmanager
def _met(topology: Topology, numbers: tuple[int, int], path: Path, make: Make) -> Iterator[bytes]:
    """Yields the list of a folder; if this process has made it, others get it until the context is left."""
    node, num_nodes = numbers
    if num_nodes == 1:
        yield make()
        return
    name = f"{path.name} {os.path.realpath(path)}".encode(errors="surrogateescape")
    content = files.digest_bytes(name).partition(":")[2]
    meeting = Meeting(MeetingFolder(meeting_folder(content, kind=LISTED), *numbers), node, num_nodes, content)
    lists, own = _Lists(make, meeting, topology.world_size), None
    is_first = not topology.local_rank  # of its node's processes, and answers others
    with ExitStack() as stack:
        stack.callback(lambda: meeting.leave(meeting.word() if is_first else None))
        if is_first:
            limits.allow_open_files()
            listener = ended_by(starting := ExitStack(), meeting.listener())
            with starting:
                stack.callback(Serving([listener], lists.prepare, lists.left, topology.world_size).close)
                starting.pop_all()
            own = listener.address
            meeting.tell(Peer(node, own, Owner.current(), False, 0, 0))
        stack.callback(lists.close)
        found, is_own = _found(meeting, content, lists, own)
        if not is_own:
            stack.close()
        yield found


def _found(meeting: Meeting, content: str, lists: _Lists, own: world.Address | None) -> tuple[bytes, bool]:
    """Returns the list, and whether this process has made it, which others reach at `own`; raises DlioError."""
    failures = 0
    while failures < _MOST_FAILURES:
        node = home_now(0, 0, meeting.num_nodes, meeting.is_lost)
        peer = meeting.peer(node)
        if node == meeting.node and (peer.address == own if peer else own or not meeting.is_gathering):
            return lists.get(node), True
        if peer is None:
            world.sleep(_SOON_SECONDS)
            continue
        try:
            with closing(tcp.connect(peer.address, meeting.token, content, node_client(meeting.node))) as connection:
                return _asked(connection), False
        except OSError as error:
            failures += 1
            meeting.failed(node, error)
            meeting.avoid(node, _AVOID_SECONDS * isinstance(error, BusyError))
            _log.info("node %d (%s) does not list the folder: %s", node, peer.owner.host, error)
    return lists.get(meeting.node), True


def _asked(connection: Connection) -> bytes:
    """Returns the list that another process sends; raises OSError."""
    most = limits.manifest_bytes()
    data = connection.answer(Request(Op.LIST), limit=most, patience=_PATIENCE_SECONDS)
    if not data:
        raise StorageError("its file system refused")
    packed = zlib.decompressobj()
    try:
        found = packed.decompress(data, most)
    except zlib.error as error:
        raise WireError(f"a list that is damaged: {error}") from error
    if not packed.eof:
        raise WireError(f"a list that is cut off, or has more than {most:,} bytes")
    return found


class _Lists:
    """Lists for all that ask: each gets a list that was begun after it asked; for any number of threads.

    Args:
        make: lists the folder.
        meeting: says how many nodes there are, and whether more are expected.
        most: the number of the job's processes, of which maybe not all ask.
    """

    def __init__(self, make: Make, meeting: Meeting, most: int) -> None:
        self._make, self._meeting, self._most = make, meeting, most
        self._changed = world.condition()
        self._nodes, self._asked, self._asked_at = dict[int, None](), 0, 0.0
        self._answering = dict[bytes, None]()
        self._wanted = self._begun = self._done = 0  # the numbers of lists
        self._latest: tuple[bytes, bytes] | Exception = b"", b""
        self._is_started = self._is_over = False

    def prepare(self, peer: world.Socket, request: Request, client: bytes) -> Callable[[], None]:
        """Returns a call that sends the list to another process, once it is made; see `Serving`."""
        if request.op != Op.LIST or not is_node(client):
            raise WireError(f"a request of op {request.op:d}: expected {Op.LIST:d}")
        with self._changed:
            self._answering[client] = None
        try:
            _, packed = self._next(node_of(client), partial(wire.send_reply, peer, Status.WAIT))
        except StorageError:  # maybe on this node only: the other one asks the next
            return lambda: wire.send_reply(peer, Status.ELSEWHERE)
        return lambda: wire.send_reply(peer, Status.OK, packed)

    def left(self, client: bytes) -> None:
        """Notes that the processes of another node have what they asked for, or do not want it any more."""
        with self._changed:
            self._answering.pop(client, None)
            self._changed.notify_all()

    def get(self, node: int) -> bytes:
        """Returns the next list, for a process of a node; raises what its making raised."""
        return self._next(node, lambda: None)[0]

    def _next(self, node: int, beat: Callable[[], None]) -> tuple[bytes, bytes]:
        """Returns the next list, also compressed; calls `beat` every two seconds; raises as `get`."""
        with self._changed:
            self._nodes[node] = None
            self._asked, self._asked_at = self._asked + 1, world.monotonic()
            number = self._wanted = self._begun + 1
            if not self._is_started:
                self._is_started = True
                world.start(self._work, "dlio-list")
            self._changed.notify_all()
        while (found := self._latest_from(number)) is None:
            beat()
        if isinstance(found, Exception):
            raise found
        return found

    def _latest_from(self, number: int) -> tuple[bytes, bytes] | Exception | None:
        """Returns the latest list, if that is this number or a later one, after waiting for it a moment."""
        deadline = world.monotonic() + wire.BEAT_SECONDS
        with self._changed:
            while self._done < number and (left := deadline - world.monotonic()) > 0:
                self._changed.wait(left)
            return self._latest if self._done >= number else None

    def _work(self) -> None:
        while self._begins():
            made: tuple[bytes, bytes] | Exception
            try:
                found = self._make()
                made = found, zlib.compress(found, 1)
            except Exception as error:
                made = error
            with self._changed:
                self._latest, self._done = made, self._begun
                self._changed.notify_all()

    def _begins(self) -> bool:
        """Waits until a list is wanted, and the first one by all who come; returns False at the end."""
        with self._changed:
            while not self._is_over:
                is_wanted = self._wanted > self._begun
                if is_wanted and (self._begun or self._have_all_asked() or not self._meeting.is_gathering):
                    self._begun += 1
                    return True
                self._changed.wait(_SOON_SECONDS if is_wanted else None)
        return False

    def _have_all_asked(self) -> bool:
        is_quiet = world.monotonic() - self._asked_at > _LAST_SECONDS
        return self._asked >= self._most or (is_quiet and len(self._nodes) == self._meeting.num_nodes)

    def close(self) -> None:
        """Ends the making of lists, once those that have asked have theirs, or after a moment."""
        deadline = world.monotonic() + wire.STALL_SECONDS
        with self._changed:
            while self._answering and (left := deadline - world.monotonic()) > 0:
                self._changed.wait(left)
            self._is_over = True
            self._changed.notify_all()
