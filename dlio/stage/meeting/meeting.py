"""How the nodes of a job that exchange files find each other, and which of them are present.

A place gives the address of each node: a folder that all nodes see (folder.py), or MPI (mpi.py). It is read once for
each node that is needed, and again when that node does not answer. All else passes between the nodes: each answer and
each request is a heartbeat, and a node that must know how far another one is asks it. Only nodes that are needed are
asked. With each question and answer goes which nodes are complete, so that not all have to ask all.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import chain, islice
from typing import Any

from dlio.cluster import liveness
from dlio.errors import MissingError
from dlio.io import world
from dlio.io.files import Span
from dlio.locking.owner import Owner
from dlio.stage.meeting.folder import MeetingFolder
from dlio.stage.meeting.peer import JOIN_SECONDS, LATE_SECONDS, Introduced, Other, Peer, shortened
from dlio.stage.protocol import tcp, wire
from dlio.stage.protocol.connection import Answer, Connection, RefusedError, node_client
from dlio.stage.protocol.tcp import TcpListener
from dlio.stage.protocol.wire import Op, Request

_TELL_SECONDS = 600.0, 30.0  # between two checks of this node's record: its own, and that of another process
_LOOK_SECONDS = 0.05, 5.0, 20.0  # between two searches for a node: at first, at most if it is late, and if it is lost
_LEAVE_SECONDS = 20.0  # for a last word
_SOON_SECONDS, _FRESH_SECONDS = 0.1, 0.75  # between two questions to a node that is awaited, and to all others
_MOST_AWAITED = 1000  # questions in a second to a node that all others await
_MOST_LOOKS = 50  # nodes that are asked at a time for a report
_FAREWELL_SECONDS = 2.0
_MOST_SPANS = 2048


class Meeting:
    """This node's part; for any number of threads.

    Args:
        place: where the nodes find each other.
        node: this node's rank.
        num_nodes: of the job.
        content: the content id of the data set.
    """

    def __init__(self, place: MeetingFolder | Introduced, node: int, num_nodes: int, content: str) -> None:
        self.node, self.num_nodes, self._place, self._content = node, num_nodes, place, content
        self.token, self.is_joined_by_others = place.token, place.is_joined_by_others
        self._client, self._began = node_client(node), world.monotonic()
        self._lock, self._looking = world.lock(), world.lock()  # the latter while the place is asked, which may hang
        self._others = dict[int, Other]()
        self._awaited = dict.fromkeys((node + each) % num_nodes for each in range(1, num_nodes))
        self._pause = max(_SOON_SECONDS, num_nodes / _MOST_AWAITED)
        self._complete = set[int]()
        self._askers: dict[int, tuple[float, bool]] = {}  # when each asked last, and whether this node was complete
        self._told: object = None  # by what the others know this node
        self._tell_at, self._speaks = 0.0, False
        self._next, self._reported = 0, float("-inf")
        self._hangs_until, self._is_over = 0.0, False

    def listener(self) -> TcpListener:
        """Returns where this node listens to the others; raises StorageError."""
        return self._place.listener(self._content)

    def tell(self, peer: Peer) -> None:
        """Tells the others how this node is reached, if they may not know; raises StorageError."""
        now, who = world.monotonic(), (peer.owner, peer.address)
        if who != self._told or now >= self._tell_at:
            self._speaks = self._place.tell(peer)
            own, other = _TELL_SECONDS
            self._told, self._tell_at = who, now + (own if self._speaks else other)
        if self._speaks and peer.needs_none:
            self._complete.add(self.node)

    def word(self, lacks: int = 0, why: str = "") -> Peer:
        """Returns the last word of a node at which nobody listens: the bytes that it lacks, and why."""
        return Peer(self.node, ("", 0), Owner.current(), not lacks, 0, lacks, waiting_for=shortened(why))

    def farewell(self) -> None:
        """Tells the nodes that have asked lately what they do not know yet: that this one has all."""
        now = world.monotonic()
        for node, (at, knows) in [*self._askers.items()]:
            is_waiting = not knows and at > now - 2 * self._pause - _FRESH_SECONDS
            if is_waiting and world.monotonic() < now + _FAREWELL_SECONDS:
                self._asked(node, 0.0)

    def leave(self, last: Peer | None = None) -> None:
        """Ends this node's part, once; nothing else may be called afterwards. A place that hangs is left behind."""
        if not self._is_over:
            self._is_over = True
            try:
                world.start(partial(self._place.leave, last), "dlio-leave").join(_LEAVE_SECONDS)
            except MissingError:  # no thread can be started
                self._place.leave(last)
            for other in [*self._others.values()]:
                other.connections.close()

    def heard(self, node: int) -> None:
        """Notes that a node asks for something, so that it lives; it may have come again."""
        if node != self.node and node < self.num_nodes:
            if node not in self._complete:
                self._awaited.setdefault(node)  # it may have been given up
            self._other(node).asks()

    def asked_by(self, node: int, complete: Iterable[Span], own: Peer) -> dict[str, Any]:
        """Returns what this node tells another of itself, and which nodes are complete, as the other one has told."""
        self._learn(complete)
        self._askers[node] = world.monotonic(), own.is_complete
        return {**own.to_json(), "complete": self._spans()}

    def use(self, peer: Peer, ask: Callable[[Connection], Answer]) -> Answer:
        """Returns what `ask` does on a connection to a node; raises as `ConnectionPool.use`, and notes no failure."""
        other = self._other(peer.node)
        answer = other.connections.use(ask, lambda: tcp.connect(peer.address, self.token, self._content, self._client))
        other.hears()
        return answer

    def failed(self, node: int, error: Exception) -> None:
        """Leaves a node alone for a while, unless its place says that it has come again."""
        with self._lock:
            if (other := self._other(node)).is_silent:  # another thread has found it out
                return
            other.fails(error, may_be_old=self._place.may_be_old(node))
        self._found(node)

    def avoid(self, node: int, seconds: float) -> None:
        """Takes a node for lost for a while, though it answers."""
        self._other(node).distrusted_until = world.monotonic() + seconds

    def _other(self, node: int) -> Other:
        return self._others.get(node) or self._others.setdefault(node, Other())

    def _found(self, node: int) -> Other:
        """Returns what is known of a node, looked up if that may help; a look-up that hangs is not waited for long."""
        other = self._other(node)
        if other.is_to_be_looked_up:
            left = 0.0 if other.looked else self._began + JOIN_SECONDS - world.monotonic()
            hangs, patience = world.monotonic() < self._hangs_until, max(_SOON_SECONDS, left)
            is_free = self._looking.acquire(timeout=0 if hangs else patience)
            if not (is_free and self._looked_up(other, node).wait(patience)):
                other.look_at = self._hangs_until = world.monotonic() + _FRESH_SECONDS
        return other

    def _looked_up(self, other: Other, node: int) -> world.Event:
        """Has another thread look a node up, and release the lock; returns an event that is set afterwards."""
        is_over, held = world.event(), [self._looking]

        def release() -> None:
            with suppress(IndexError):  # once
                held.pop().release()

        def work() -> None:
            try:
                if other.is_to_be_looked_up:
                    self._look_up(other, node)
            finally:
                release()
                is_over.set()

        try:
            world.start(work, "dlio-find")
        except MissingError:  # no thread can be started
            work()
        except BaseException:  # an interrupt: the thread may run, or not
            release()
            raise
        return is_over

    def _look_up(self, other: Other, node: int) -> None:
        found = self._place.find(node)
        other.is_withdrawn = found is None
        if found and other.moves(found, is_word=self.is_joined_by_others, since=self._began) and not found.has_left:
            self._complete.discard(node)  # it may have lost all
            self._awaited.setdefault(node)
        now, (first, late, lost) = world.monotonic(), _LOOK_SECONDS
        since = now - self._began
        pause = min(max(first, since / 10), late) if not other.has_come and since < LATE_SECONDS else lost
        other.looked, other.look_at = now, now + pause

    def peer(self, node: int) -> Peer | None:
        """Returns how a node is reached; None if it has not come, has left, or did not answer a moment ago."""
        other = self._found(node)
        return other.peer if other.is_answering else None

    def _asked(self, node: int, fresh: float) -> Other:
        """Returns what is known of a node, after asking it unless it has told in the last `fresh` seconds."""
        other = self._other(node)
        with other.asking:
            if (peer := self.peer(node)) and world.monotonic() - other.told > fresh:
                try:
                    other.word = self.use(peer, partial(self._word_of, node))
                    other.told = world.monotonic()
                except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
                    self.failed(node, error if isinstance(error, OSError) else RefusedError(str(error)))
        return other

    def _word_of(self, node: int, connection: Connection) -> Peer:
        """Returns what a node tells of itself; raises OSError, ValueError, KeyError or TypeError."""
        asked = Request(Op.PEER, 0, self._spans())
        record = json.loads(connection.answer(asked, limit=wire.MAX_STAT, patience=wire.SILENCE_SECONDS))
        self._learn((int(begin), int(end)) for begin, end in record["complete"])
        if (word := Peer.from_json(node, record)).needs_none:
            self._complete.add(node)
        else:
            self._complete.discard(node)
        return word

    def _learn(self, complete: Iterable[Span]) -> None:
        """Learns which other nodes are complete, and no more than there are."""
        spans = (range(begin, min(end, self.num_nodes)) for begin, end in complete if begin >= 0)
        told = set(islice(chain.from_iterable(spans), self.num_nodes)) - self._complete - {self.node}
        returned = {node for node, other in [*self._others.items()] if other.has_returned}
        self._complete.update(told - returned)

    def _spans(self) -> tuple[Span, ...]:
        """Returns the nodes that are complete; if they are too many, some of them."""
        known = sorted(complete := self._complete.copy())
        begins, ends = [n for n in known if n - 1 not in complete], [n + 1 for n in known if n + 1 not in complete]
        return tuple(zip(begins, ends, strict=True))[:_MOST_SPANS]

    def is_lost(self, node: int, *, asks: bool = False) -> bool:
        """Returns whether a node is lost, as far as is known; if this one `asks`, it has done so in the last second."""
        if node == self.node:
            return False
        other = self._found(node)
        if asks and world.monotonic() - other.told > _FRESH_SECONDS:
            other.connections.close()  # a new one finds out sooner
            other = self._asked(node, _FRESH_SECONDS)
        if other.distrusted_until > world.monotonic():
            return True
        return self.peer(node) is None and (other.has_come or not self.is_gathering)

    @property
    def is_gathering(self) -> bool:
        """Whether nodes that have not come are still expected."""
        return world.monotonic() - self._began < JOIN_SECONDS

    def expects(self, node: int, *, looks: bool = True) -> bool:
        """Returns whether a node has never been here, and may be starting still.

        If it `looks` nowhere, the node was so when it was last looked up, and need not be once more.
        """
        other = self._found(node) if looks else self._other(node)
        if other.is_to_be_looked_up and not looks:
            return False
        return not (other.has_come or other.is_answering) and world.monotonic() - self._began < LATE_SECONDS

    def rooms(self, own: int) -> tuple[int | None, ...] | None:
        """Returns the bytes that each node may keep, None of one that has not come; None while these are expected."""
        found: dict[int, int | None] = {self.node: own}
        for node in (*range(self.node + 1, self.num_nodes), *range(self.node)):
            found[node] = self._room(node)
            if found[node] is None and self.is_gathering:  # so those after it are not looked up in vain
                return None
        return tuple(found[node] for node in range(self.num_nodes))

    def _room(self, node: int) -> int | None:
        """Returns a node's room as its place tells, unless what that tells is left of a run that was killed here."""
        other = self._found(node)
        may_be_old = self.is_joined_by_others and not other.has_spoken and other.room is not None
        if may_be_old and other.peer and other.peer.owner.is_alive() is False:  # a killed run has left it
            self.failed(node, RefusedError("its process has ended"))
        return other.room

    def known(self) -> list[Peer]:
        """Returns the latest word of each other node that was ever there, by their ranks.

        It asks those whose turn it is how far they are, for a second at most.
        """
        if (began := world.monotonic()) - self._reported >= _FRESH_SECONDS:
            self._reported = began
            for _ in range(min(_MOST_LOOKS, self.num_nodes)):
                node = self._next = (self._next + 1) % self.num_nodes
                if node != self.node and not (node in self._complete and self._other(node).word):
                    self._asked(node, _FRESH_SECONDS)
                if world.monotonic() - began > _FRESH_SECONDS:
                    break
        return [self._updated(other.word) for _, other in sorted([*self._others.items()]) if other.word]

    def told(self) -> list[tuple[Peer, int]]:
        """Returns what those nodes that answer told last, each with its age in seconds; 0 of one that has all."""
        known, now = [peer for peer in self.known() if self.peer(peer.node)], world.monotonic()
        ages = [0.0 if peer.is_complete else now - self._other(peer.node).told for peer in known]
        return [(peer, int(age)) for peer, age in zip(known, ages, strict=True) if age < math.inf]

    def _updated(self, word: Peer) -> Peer:
        """Returns a node's word, with all that it keeps if others know that it has it."""
        return replace(word, is_complete=True, staged_bytes=word.total_bytes) if word.node in self._complete else word

    def awaits_any(self, *, is_used: bool = False) -> bool:
        """Returns whether another node is present, or expected, that is neither complete nor stuck.

        Nodes that keep less than their copies count as long as they are present, if they may use this one (`is_used`).
        It asks for a moment at most, since each node that does not answer takes seconds.
        """
        began = world.monotonic()
        for node in [*self._awaited]:
            if node in self._complete or not self._awaits(node):
                self._awaited.pop(node, None)
            elif not ((word := self._other(node).word) and (word.is_stuck or (word.is_complete and not is_used))):
                return True
            if world.monotonic() - began > _FRESH_SECONDS:
                return True
        return False

    def _awaits(self, node: int) -> bool:
        """Returns whether a node is present or expected, after asking it."""
        other = self._asked(node, self._pause)
        if not other.has_come:
            return world.monotonic() - self._began < LATE_SECONDS
        if node in self._complete or self._has_ended(other):
            return False
        return not other.failures or world.monotonic() - other.heard < liveness.LOST_SECONDS

    def _has_ended(self, other: Other) -> bool:
        """Returns whether a node has surely ended; one whose process was killed on its machine may come again."""
        may_return = self.is_joined_by_others and other.peer and other.peer.owner.is_alive() is not False
        return other.has_left or (other.refusals > 0 and not (may_return and not other.is_withdrawn))

    def absent(self) -> list[int]:
        """Returns the nodes that never came."""
        here = {node for node, other in [*self._others.items()] if other.has_come} | self._complete | {self.node}
        return [node for node in range(self.num_nodes) if node not in here]

    def lost(self) -> Iterator[Peer]:
        """Yields the last word of each node that came, and then fell silent or left before its copy was complete."""
        for node, other in sorted([*self._others.items()]):
            word, is_told = other.word or other.peer, bool(other.refusals and not self.is_joined_by_others)
            is_here = word is None or self.peer(node) is not None or self._updated(word).is_complete
            if word and other.has_come and not (is_here or is_told):  # its launcher has told why
                yield word
