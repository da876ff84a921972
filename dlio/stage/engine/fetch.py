"""Where a span comes from: the node that owns it, a node that has it already, and last of all the source."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial

from dlio.dataset.tree import group_digest, slices
from dlio.io import files, trace, world
from dlio.io.files import Span
from dlio.stage.engine.failures import LaterError
from dlio.stage.meeting.meeting import Meeting
from dlio.stage.meeting.peer import STREAMS, Peer
from dlio.stage.planning.plan import Plan
from dlio.stage.protocol import wire
from dlio.stage.protocol.connection import AgentError, BusyError, Connection
from dlio.stage.protocol.wire import Op, Origin, Request
from dlio.stage.sources import StagingSource

_DISTRUST_SECONDS = 60.0  # a node that sent bytes which proved wrong
_TRIES = 3
_SOON_SECONDS = 0.05
_ROOMS_SECONDS = 1.0  # for the rooms of all nodes to be looked up, once no more nodes are expected

_log = logging.getLogger(__name__)


class Fetching:
    """Fetches spans, and counts them.

    Args:
        source: the data set.
        plan: this node's part.
        meeting: the other nodes; None if files come from the source only.
        receives: called with the name of a file without a digest that gets bytes from another node.
        opened: opens a file that this node keeps, to compare a damaged one with the source.

    Attributes:
        plan: as it is now.
        source_bytes: read from the source.
        peer_bytes: received from other nodes.
        needs_rooms: an event that is set once a plan with the rooms of all nodes is needed.
    """

    def __init__(
        self,
        source: StagingSource,
        plan: Plan,
        meeting: Meeting | None = None,
        receives: Callable[[str], None] = lambda name: None,
        opened: Callable[[int], AbstractContextManager[int]] | None = None,
    ) -> None:
        self._source, self.plan, self._meeting, self._receives = source, plan, meeting, receives
        self._opened, self._lock = opened, world.lock()
        self.needs_rooms, self._follows, self._rooms_by = world.event(), world.event(), 0.0
        self._streams: dict[int, world.Semaphore] = defaultdict(lambda: world.semaphore(STREAMS))
        self._from_source = set[int]()  # files of which wrong bytes came
        self._peers_asked: dict[int, str] = {}
        self._not_held: set[tuple[int, int]] = set()  # files, and their pieces
        self._senders: dict[int, dict[tuple[int, int], None]] = defaultdict(dict)  # and the pieces of each
        self._suspects: dict[int, dict[tuple[int, int], None]] = {}  # the senders of divided files that are damaged
        self.source_bytes = self.peer_bytes = 0

    def is_home(self, number: int, begin: int, beat: Callable[[], None]) -> bool:
        """Returns whether this node is to read a piece from the source now, after asking the nodes that come before it.

        Args:
            number, begin: the file, and the first byte.
            beat: called before another node is asked, which may take seconds.
        """

        def has_lost(node: int) -> bool:
            if node != self.plan.node:
                beat()
            return meeting is not None and meeting.is_lost(node, asks=True)

        def is_own() -> bool:
            now = self.plan
            return number in now.kept and now.home(number, has_lost, begin) == now.node

        meeting, plan = self._meeting, self.plan
        return meeting is None or is_own() or (self.has_another(plan, beat) and is_own())  # who asks knows the rooms

    def follow(self, plan: Plan) -> None:
        """Carries out another plan from now on."""
        self.plan = plan
        self._follows.set()

    def has_another(self, plan: Plan, beat: Callable[[], None] | None = None) -> bool:
        """Returns whether there is another plan by now, since the rooms of all nodes are known; looks nowhere.

        With a `beat`, which is called while it waits, it waits for them as long as they are expected.
        """
        while self._awaits_rooms(plan) and beat:
            beat()
            self._follows.wait(_SOON_SECONDS)
        return self.plan is not plan

    def _awaits_rooms(self, plan: Plan) -> bool:
        """Returns whether the rooms of all nodes, which a plan lacks, are known soon; has them looked up."""
        if self._meeting is None or plan.knows_rooms or self.plan is not plan:
            return False
        now = world.monotonic()
        if self._meeting.is_gathering or not self.needs_rooms.is_set():
            self._rooms_by = now + _ROOMS_SECONDS
        self.needs_rooms.set()
        return now < self._rooms_by

    @property
    def exchanges(self) -> bool:
        """Whether this node passes files to others, and gets them."""
        return self._meeting is not None

    def share(self, number: int, spans: Sequence[Span], *, is_far: bool) -> Iterable[Span]:
        """Returns what of the spans of a file others are to read from the source, be they lost or not, or this node."""
        return self.plan.share(number, spans, is_own=not is_far) if self._meeting else spans

    def home(self, number: int, begin: int) -> int:
        """Returns the node that reads a piece from the source if none is lost."""
        return self.plan.home(number, begin=begin)

    def is_divided(self, number: int) -> bool:
        """Returns whether several nodes read a file from the source."""
        return self.plan.is_divided(number)

    def is_expected(self, number: int, begin: int, *, looks: bool = True) -> bool:
        """Returns whether a piece is left to the node that reads it, which may start still; see `Meeting.expects`."""
        if self._meeting is None:
            return False
        home = self.plan.home(number, begin=begin)
        return home != self.plan.node and self._meeting.expects(home, looks=looks)

    def distrust(self, number: int) -> None:
        """Takes a file of which wrong bytes came from the source only, from now on."""
        self._from_source.add(number)

    def fetch(self, number: int, begin: int, target: memoryview, is_urgent: bool = True) -> Origin:
        """Fills `target` with a span of a file, and returns where it came from.

        Args:
            number, begin, target: the file, the span's begin, and the memory of its length.
            is_urgent: a reader waits for it.

        Raises:
            LaterError: the home has not started yet, and may come soon.
            StorageError: neither another node nor the source can give it.
        """
        parts = self.plan.cut(number, begin, begin + len(target))
        return max(
            self._fetched(number, first, target[first - begin : last - begin], is_urgent) for first, last in parts
        )

    def _fetched(self, number: int, begin: int, target: memoryview, is_urgent: bool) -> Origin:
        """Fills `target` with a span that has one home; see `fetch`."""
        meeting = None if number in self._from_source else self._meeting
        if meeting and self._from_peers(meeting, number, begin, target, is_urgent):
            with self._lock:
                self.peer_bytes += len(target)
            if not (file := self.plan.listed[number]).digest:
                self._receives(file.name)
            return Origin.PEER
        self._peers_asked.pop(number, None)
        with self._traced(number, "the source"):
            self._source.read_range(self.plan.listed[number], begin, target)
        self._blame(number, begin, target)
        with self._lock:
            self.source_bytes += len(target)
        return Origin.SOURCE

    def judge(self, number: int, is_right: bool) -> None:
        """Learns whether a file proved right; distrusts a damaged one, and avoids the nodes that sent parts of it.

        All nodes send pieces of a divided file: it shows who sent wrong ones once they come from the source.
        """
        if not is_right:
            self.distrust(number)
        with self._lock:
            senders = self._senders.pop(number, {})
            self._suspects.pop(number, None)
            if not is_right and self.plan.is_divided(number):
                self._suspects[number] = senders
        if not is_right and self._meeting and senders:
            nodes = sorted({node for node, _ in senders})
            name, who = self.plan.listed[number].name, ", ".join(map(str, nodes))
            _log.warning("%s, partly from node %s, is damaged: it is fetched from the source", name, who)
            for node in () if self.plan.is_divided(number) else nodes:
                self._meeting.avoid(node, _DISTRUST_SECONDS)

    def _blame(self, number: int, begin: int, data: memoryview) -> None:
        """Avoids who sent a piece of a damaged file, if what is here of it is not what the source has."""
        at = self.plan.piece_of(number, begin)
        nodes = {node for node, piece in self._suspects.get(number, ()) if piece == at}
        if self._meeting and self._opened and nodes:
            here = bytearray(len(data))
            with suppress(OSError), self._opened(number) as descriptor:
                if world.preadv(descriptor, [memoryview(here)], begin) == len(data) and here != data:
                    for node in nodes:
                        self._meeting.avoid(node, _DISTRUST_SECONDS)

    def _from_peers(self, meeting: Meeting, number: int, begin: int, target: memoryview, is_urgent: bool) -> bool:
        """Fills `target` from another node; returns False if the source must be read."""
        for _ in range(_TRIES):
            home = (plan := self.plan).home(number, meeting.is_lost, begin)
            if home == plan.node:
                if number not in plan.kept and self._may_move(plan, number):
                    continue
                return self._held_elsewhere(meeting, number, begin, target)
            peer = meeting.peer(home)
            if peer is None:
                if meeting.is_gathering:
                    raise LaterError(f"node {home}, which reads {self.plan.listed[number].name}, has not started yet")
                continue
            op = Op.SERVE if is_urgent else Op.AHEAD
            found = self._ask(meeting, peer, op, number, begin, target)
            if found or (found is False and not self._may_move(plan, number)):
                return found
            if not is_urgent and meeting.expects(home):
                raise LaterError(f"node {home} has come, and does not answer yet")
        return False

    def _may_move(self, plan: Plan, number: int) -> bool:
        """Returns whether a file whose home has no room for it may have another one by now; raises LaterError."""
        if self._awaits_rooms(plan) and not self._follows.wait(_SOON_SECONDS):
            raise LaterError(f"nodes that may have room for {plan.listed[number].name} have not started yet")
        return self.plan is not plan

    def _held_elsewhere(self, meeting: Meeting, number: int, begin: int, target: memoryview) -> bool:
        """Asks the node that takes over a piece while this node is lost: it may have it once this node is back."""
        if (piece := (number, self.plan.piece_of(number, begin))) in self._not_held:
            return False
        substitute = self.plan.home(number, lambda node: node == self.plan.node or meeting.is_lost(node), begin)
        peer = None if substitute == self.plan.node else meeting.peer(substitute)  # itself if all others are lost
        if peer and self._ask(meeting, peer, Op.HELD, number, begin, target):
            return True
        with self._lock:
            self._not_held.add(piece)
        return False

    def _ask(self, meeting: Meeting, peer: Peer, op: Op, number: int, begin: int, target: memoryview) -> bool | None:
        """Requests a span by one of at most STREAMS connections to a node.

        Returns False if the node does not have it, None if it cannot be reached.
        """
        request = Request(op, number, ((begin, begin + len(target)),))
        read = partial(Connection.read, request=request, target=target, patience=wire.STALL_SECONDS)
        with self._lock:
            streams = self._streams[peer.node]
        try:
            with streams, self._asking(number, f"node {peer.node} at {peer.address[0]}"):
                if meeting.is_lost(peer.node):
                    raise TimeoutError("it did not answer a moment ago")
                sent = meeting.use(peer, read)
        except AgentError as error:
            _log.info("node %d: %s", peer.node, error)
            return False
        except OSError as error:
            if op == Op.AHEAD and isinstance(error, BusyError):
                raise LaterError(
                    f"node {peer.node} has more urgent work than {self.plan.listed[number].name}"
                ) from None
            if not meeting.is_lost(peer.node):  # else another thread has found it out
                _log.warning("node %d at %s: %s: others are asked", peer.node, peer.address[0], error)
                meeting.failed(peer.node, error)
            return None
        if sent is not None:
            with self._lock:
                self._senders[number][peer.node, self.plan.piece_of(number, begin)] = None
        return sent is not None

    @contextmanager
    def _asking(self, number: int, peer: str) -> Iterator[None]:
        self._peers_asked[number] = peer
        with self._traced(number, peer):
            yield
        self._peers_asked.pop(number, None)

    def _traced(self, number: int, peer: str) -> AbstractContextManager[None]:
        return trace.span("fetch", "stage", f"{self.plan.listed[number].name} from {peer}")

    def asked(self, number: int) -> str:
        """Returns who is asked, or was asked last without success, for a span of a file; the source if nobody is."""
        return self._peers_asked.get(number) or self._source.name_of(self.plan.listed[number])

    def digest_at_source(self, number: int) -> str:
        """Returns the digest of a file, which is read from the source once more; raises StorageError."""
        self.distrust(number)
        if group := self.plan.groups.get(self.plan.listed[number].name):
            self.fetch(number, 0, data := memoryview(bytearray(self.plan.listed[number].num_bytes)))
            return group_digest([files.digest_bytes(part) for *_, part in slices(group, data)])
        file, running = self.plan.listed[number], files.new_hash(files.DEFAULT_DIGEST)
        buffer = memoryview(bytearray(min(files.READ_BYTES, file.num_bytes)))
        for begin in range(0, file.num_bytes, files.READ_BYTES):
            target = buffer[: file.num_bytes - begin]
            self.fetch(number, begin, target)
            running.update(target)
        return f"{files.DEFAULT_DIGEST}:{running.hexdigest()}"

    def close(self) -> None:
        """Closes the source."""
        self._source.close()
