"""What the oracle sees within the engine, by wrapping its calls, whose behaviour does not change."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from dlio.dataset.manifest import Manifest
from dlio.io import world
from dlio.io.files import Span
from dlio.locking import claim
from dlio.locking.claim_file import Claim
from dlio.stage.copies.folder import StagedFolder
from dlio.stage.engine.fetch import Fetching
from dlio.stage.engine.fill import Fill
from dlio.stage.engine.running_digest import MOST_HELD, Held
from dlio.stage.engine.store import Store
from dlio.stage.engine.writing import Buffers
from dlio.stage.meeting.meeting import Meeting
from dlio.stage.meeting.peer import Peer
from dlio.stage.planning import flows
from dlio.stage.protocol import tcp, wire
from dlio.stage.protocol.connection import AgentError, Connection
from tools.simulate.oracle import Oracle
from tools.simulate.process import Process, Task
from tools.simulate.replaced import replaced
from tools.simulate.scheduler import MS, S, Scheduler

_AVOIDED, _AT_ONCE = 49 * S // 10, 1 * MS  # a node that is silent is avoided for 5 s, by clocks that may be fast
LATE = 20 * MS  #: within which a reader gets bytes that have arrived; the engine checks again after 100 ms in any case


def most_buffers() -> int:
    """Returns how many pieces of memory an agent may use at a time."""
    return 4 * flows.THREADS + MOST_HELD + 1  # each thread may read again, too


def _overlap(span: Span, others: Sequence[Span]) -> bool:
    """Returns whether any of the other spans has a byte of a span; if these have none, all of the file counts."""
    with_bytes = [(begin, end) for begin, end in others if begin < end]
    return not with_bytes or any(begin < span[1] and span[0] < end for begin, end in with_bytes)


class Watching:
    """Follows the engine of all processes.

    Args:
        scheduler: of the schedule.
        oracle: notes broken promises.
    """

    def __init__(self, scheduler: Scheduler, oracle: Oracle) -> None:
        self._scheduler, self._oracle = scheduler, oracle
        self._buffers: defaultdict[Process | None, int] = defaultdict(int)
        self._held: defaultdict[Held, int] = defaultdict(int)
        # Of each file of a process: when spans were written, and those that are being written now.
        self._came: defaultdict[tuple[Process | None, int], dict[Span, int]] = defaultdict(dict)
        self._written: defaultdict[tuple[Process | None, int], list[Span]] = defaultdict(list)
        self._urgent: dict[Task | None, bool] = {}
        self._silent: dict[tuple[Process | None, world.Address], tuple[int, int]] = {}  # the latest attempt: from, to
        self._refused: dict[tuple[Process | None, world.Address], int] = {}  # when a node last refused a connection
        self._askers: set[tuple[Process | None, int]] = set()
        self.distrusted: set[tuple[Process | None, int]] = set()  #: files of which wrong bytes came, by their numbers
        self._cut_off: set[Task | None] = set()  # tasks whose connection has just ended, which may try a new one
        self.sent_bytes: defaultdict[int, int] = defaultdict(int)  #: by each node to others

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Follows until the block ends."""
        with ExitStack() as stack:
            for owner, name, around in (
                (Buffers, "take", self._taking),
                (Buffers, "give_back", self._giving_back),
                (Held, "put", self._holding),
                (Fetching, "judge", self._judging),
                (Store, "write", self._writing),
                (Fill, "need", self._needing),
                (Fetching, "fetch", self._fetching),
                (claim, "_wait_for_claim", self._claiming),
                (Fetching, "_from_peers", self._asking_others),
                (Fill, "_cleared", self._distrusting),
                (Fetching, "distrust", self._distrusting),
                (Connection, "read", self._reading),
                (tcp, "connect", self._connecting),
                (Meeting, "use", self._hearing),
                (Meeting, "heard", self._being_asked),
                (wire, "send_file", self._sending),
                (StagedFolder, "finish", self._finishing),
            ):
                stack.enter_context(replaced(owner, **{name: around(getattr(owner, name))}))
            yield

    @property
    def _process(self) -> Process | None:
        return self._scheduler.current.process if self._scheduler.current else None

    def _taking(self, take: Callable[[Buffers], memoryview]) -> Callable[[Buffers], memoryview]:
        def counted(buffers: Buffers) -> memoryview:
            process = self._process
            self._buffers[process] += 1
            if self._buffers[process] > most_buffers():
                self._oracle.broken("memory", f"{process} uses {self._buffers[process]} pieces of memory")
            return take(buffers)

        return counted

    def _giving_back(self, give_back: Callable[[Buffers, memoryview], None]) -> Callable[[Buffers, memoryview], None]:
        def counted(buffers: Buffers, buffer: memoryview) -> None:
            self._buffers[self._process] -= 1
            give_back(buffers, buffer)

        return counted

    def _holding(self, put: Callable[..., None]) -> Callable[..., None]:
        def counted(held: Held, digest: object, begin: int, data: memoryview, release: Callable[[], None]) -> None:
            def released() -> None:
                self._held[held] -= 1
                release()

            put(held, digest, begin, data, released)
            self._held[held] += 1
            if self._held[held] > min(held._most, MOST_HELD):
                self._oracle.broken("memory", f"{self._process} holds {self._held[held]} pieces that came too early")

        return counted

    def _judging(self, judge: Callable[[Fetching, int, bool], None]) -> Callable[[Fetching, int, bool], None]:
        def judged(fetching: Fetching, number: int, is_right: bool) -> None:
            if not (is_right or self._oracle.may_be_wrong):
                self._oracle.broken("right-bytes", f"{self._process} has put together file {number} wrongly")
            judge(fetching, number, is_right)

        return judged

    def _writing(self, write: Callable[..., None]) -> Callable[..., None]:
        def noted(store: Store, number: int, begin: int, data: memoryview, *arguments: Any, **options: Any) -> None:
            key, span = (self._process, number), (begin, begin + len(data))
            self._written[key].append(span)
            try:
                write(store, number, begin, data, *arguments, **options)
            finally:
                self._written[key].remove(span)
            self._came[key][span] = self._scheduler.now

        return noted

    def _needing(self, need: Callable[..., Any]) -> Callable[..., Any]:
        def timed(filling: Fill, number: int, spans: Sequence[Span], *arguments: Any, **options: Any) -> Any:
            asked = self._scheduler.now
            found = need(filling, number, spans, *arguments, **options)
            key, now = (self._process, number), self._scheduler.now
            is_seen_early = any(_overlap(span, spans) for span in self._written[key])  # before its write returns
            came = (at for span, at in self._came[key].items() if _overlap(span, spans))
            waited = now - max([asked, *came])
            if waited > LATE and not (is_seen_early or self._oracle.causes.troubles):
                late = f"{self._process} waited {waited / MS:.0f} ms for what was there of {number}"
                self._oracle.broken("waking", late)
            return found

        return timed

    def _fetching(self, fetch: Callable[..., Any]) -> Callable[..., Any]:
        def known(fetching: Fetching, number: int, begin: int, target: memoryview, is_urgent: bool = True) -> Any:
            self._urgent[self._scheduler.current] = is_urgent
            try:
                return fetch(fetching, number, begin, target, is_urgent)
            finally:
                self._urgent[self._scheduler.current] = False

        return known

    def _asking_others(self, ask: Callable[..., Any]) -> Callable[..., Any]:
        def watched(fetching: Fetching, meeting: object, number: int, *arguments: Any) -> Any:
            if (self._process, number) in self.distrusted:
                who = self._scheduler.current
                self._oracle.broken("from-source", f"{who} asks others for file {number}, of which wrong bytes came")
            return ask(fetching, meeting, number, *arguments)

        return watched

    def _claiming(self, wait: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*arguments: Any) -> Any:
            found = wait(*arguments)
            previous: Claim | None = found[1] if found else None
            if previous and previous.state == "held" and previous.owner.is_alive():
                self._oracle.broken("one-at-work", f"{self._process} takes the claim of {previous.owner}, which lives")
            return found

        return watched

    def _distrusting(self, distrust: Callable[..., Any]) -> Callable[..., Any]:
        """Notes the files of which wrong bytes came."""

        def noted(owner: object, number: int, *arguments: Any) -> Any:
            self.distrusted.add((self._process, number))
            return distrust(owner, number, *arguments)

        return noted

    def _reading(self, read: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*arguments: Any, **options: Any) -> Any:
            try:
                return read(*arguments, **options)
            except (AgentError, TimeoutError):
                raise
            except OSError:
                self._cut_off.add(self._scheduler.current)
                raise

        return watched

    def _connecting(self, connect: Callable[..., Any]) -> Callable[..., Any]:
        def watched(address: world.Address, *arguments: Any) -> Any:
            task, key = self._scheduler.current, (self._process, address)
            is_urgent = self._urgent.get(task, False) and task not in self._cut_off
            self._cut_off.discard(task)
            tried, failed = self._silent.get(key, (-_AVOIDED, -_AVOIDED))
            now = self._scheduler.now  # another thread may have found out earlier, while this one tried
            if is_urgent and failed + _AT_ONCE < now < tried + _AVOIDED:
                after = f"after {(now - failed) / S:.3f} s"
                self._oracle.broken("left-alone", f"{self._process} tries {address[0]} again {after}")
            try:
                return connect(address, *arguments)
            except ConnectionRefusedError:  # its machine answers, whatever comes of attempts that began before
                self._refused[key] = self._scheduler.now
                self._silent.pop(key, None)
                raise
            except TimeoutError:
                if is_urgent and self._refused.get(key, -1) < now:
                    self._silent[key] = now, self._scheduler.now
                raise

        return watched

    def _hearing(self, use: Callable[..., Any]) -> Callable[..., Any]:
        def watched(meeting: Meeting, peer: Peer, ask: object) -> Any:
            answer = use(meeting, peer, ask)
            self._silent.pop((self._process, peer.address), None)  # it answers, on a connection that it had before
            return answer

        return watched

    def _being_asked(self, heard: Callable[..., None]) -> Callable[..., None]:
        """Has a node count as one that may answer when it asks for the first time."""

        def noted(meeting: Meeting, node: int) -> None:
            if (asker := (self._process, node)) not in self._askers and (peer := meeting._other(node).peer):
                self._askers.add(asker)
                self._silent.pop((self._process, peer.address), None)
            heard(meeting, node)

        return noted

    def _finishing(self, finish: Callable[..., None]) -> Callable[..., None]:
        def watched(folder: StagedFolder, manifest: Manifest, names: Sequence[str], *arguments: Any) -> None:
            with self._oracle.publishing(folder.path, names):
                finish(folder, manifest, names, *arguments)

        return watched

    def _sending(self, send: Callable[..., None]) -> Callable[..., None]:
        def counted(peer: world.Socket, descriptor: int, begin: int, end: int) -> None:
            send(peer, descriptor, begin, end)
            if isinstance(peer.getsockname(), tuple) and self._process:
                self.sent_bytes[self._process.node] += end - begin

        return counted

    def check_shares(self, shares: Sequence[int]) -> None:
        """Checks that no node has sent more than the others lack of its share, if there was no fault.

        Args:
            shares: the bytes of the files that each node reads from the source.
        """
        if not self._oracle.causes.is_calm:
            return
        for node, share in enumerate(shares):
            if self.sent_bytes[node] > (most := share * (len(shares) - 1)):
                self._oracle.broken("share", f"node {node} has sent {self.sent_bytes[node]:,} bytes, not {most:,}")
