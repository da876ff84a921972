"""Why a node may read from the source what another has read: what went wrong, when, and for which nodes.

A node that cannot reach the home of a block asks the next one, and then the source (docs/live.md). So a second read
needs a cause: something that is wrong, or was until a short time ago, with the node that reads, or with one that has
read before. While nodes start and end, some know of it before others do, so more than one may read instead of the
lost one. Once all of them know it, only one does.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass

from dlio.stage.meeting.peer import JOIN_SECONDS
from tools.simulate.process import Process
from tools.simulate.scheduler import S, Scheduler

#: ns for which others are asked instead of a node after something went wrong with it: it is avoided for 5 s, and silent
#: for up to 20 s until it is taken for lost.
_WARY = 30 * S
#: ns for which a node that has sent wrong bytes is avoided, and what else that leads to.
_DISTRUSTED = 100 * S
#: ns until all nodes know that one is lost, or back.
_SETTLED = 26 * S
_SOON = 3 * S  #: ns in which all nodes come unless some are late
_NEVER = 1 << 62
#: Faults that only checksums detect.
SPOILING = frozenset({"power", "disk-flip", "source-flip", "disk-eio-sync", "source-changed"})
#: What makes a node seem lost to some others, and present to the rest.
_OF_NODES = frozenset({
    "kill", "stop", "power", "gone", "absent", "isolate", "cut", "clog", "reset", "refused", "lost", "failure",
})  # fmt: skip
_SILENT = 2 * S  #: ns for which a disk hangs until its node seems lost


@dataclass(slots=True)
class Trouble:
    """Something that goes wrong.

    Attributes:
        kind: of it.
        nodes: that it concerns; None for all.
        begin, end: when, in ns.
    """

    kind: str
    nodes: Set[int] | None
    begin: int
    end: int = _NEVER

    def concerns(self, nodes: Set[int]) -> bool:
        """Returns whether it concerns any of these nodes."""
        return self.nodes is None or bool(self.nodes & nodes)


@dataclass(frozen=True, slots=True)
class Read:
    """A read of a block from the source: when, in ns, and by which process."""

    at: int
    process: Process

    @property
    def node(self) -> int:
        """Where."""
        return self.process.node


class Causes:
    """The faults so far; for one scheduler.

    Args:
        scheduler: has the time.
        num_nodes: of the job.
    """

    def __init__(self, scheduler: Scheduler, num_nodes: int) -> None:
        self._scheduler, self._num_nodes = scheduler, num_nodes
        self.troubles: list[Trouble] = []
        self._comings: dict[int, list[int]] = {}  # of each node

    def begin(self, kind: str, nodes: Set[int] | None) -> Trouble:
        """Notes that something goes wrong, until its `end` is set."""
        self.troubles.append(found := Trouble(kind, nodes, self._scheduler.now))
        return found

    def happened(self, kind: str, nodes: Set[int] | None) -> None:
        """Notes something that is over at once."""
        self.begin(kind, nodes).end = self._scheduler.now

    def comes(self, node: int) -> None:
        """Notes that a process of a node starts."""
        self._comings.setdefault(node, []).append(self._scheduler.now)

    @property
    def is_calm(self) -> bool:
        """Whether nothing has gone wrong, and all nodes came at about the same time."""
        return not self.troubles and not self._are_some_late

    @property
    def _are_some_late(self) -> bool:
        return len(self._comings) < self._num_nodes or max(each[0] for each in self._comings.values()) > _SOON

    @property
    def latest(self) -> int:
        """When the last node came, or a fault ended, or began that does not end; in ns.

        What fails and comes again does not count, or nobody would have to end who does so forever.
        """
        faults = [each for each in self.troubles if each.kind != "failure"]
        changes = [each.begin if each.end == _NEVER else each.end for each in faults]
        return max(changes + [comings[0] for comings in self._comings.values()], default=0)

    def has_been(self, kinds: Set[str]) -> bool:
        """Returns whether anything of these kinds has happened."""
        return any(trouble.kind in kinds for trouble in self.troubles)

    def excuses(self, read: Read, before: Sequence[Read], home: int | None = None, *, is_only: bool = False) -> bool:
        """Returns whether there is a cause to read again what others, or the same node, have read before.

        Args:
            read, before: this one, and those before it.
            home: the node that reads it for the others, if none is lost; None if each reads for itself.
            is_only: whether no other node keeps it.
        """
        if self._is_unsettled(read.at):  # another node may have read than others ask
            return True
        if is_only and any(self._is_unsettled(each.at) for each in before):  # some know too late who has room for what
            return True
        if read.node == home and all(each.node != home and self._is_unsettled(each.at) for each in before):
            return True  # it was lost for some, who read instead, and it does not know who has it
        if is_only and home is not None and (self._comes_later(home, read.at) or self._has_ended(home, read, before)):
            return True
        if self._has_come_after(read, before):
            return True
        if self._have_left_without(read, before):
            return True
        nodes = {read.node, *(each.node for each in before)} | ({home} if home is not None else set())
        return any(self._is_cause(trouble, read.at, nodes) for trouble in self.troubles)

    def excuses_again(self, read: Read, before: Sequence[Read]) -> bool:
        """Returns whether a process could not keep what it has read before, so that there is a cause to read it again.

        What happens to it between the two reads is a cause, however much later it reads again: it may be stopped, or
        wait for a node that it expects.
        """
        earlier = max(each.at for each in before)
        failed = [
            each for each in self.troubles if each.kind.startswith(("disk-", "source-")) and each.begin <= read.at
        ]
        return any(self._is_cause(each, max(each.begin, earlier), {read.node}) for each in failed)

    def _is_unsettled(self, at: int) -> bool:
        """Returns whether a node had come, or something had begun or ended, a short time before, as not all knew."""
        if self._are_some_late and self._comes_one_at(at):
            return True
        of_nodes = [
            each
            for each in self.troubles
            if each.kind in _OF_NODES or (each.kind == "disk-hang" and each.end - each.begin > _SILENT)
        ]
        changes = [change for trouble in of_nodes for change in (trouble.begin, trouble.end)]
        return any(change < at <= change + _SETTLED for change in changes)

    def _comes_one_at(self, at: int) -> bool:
        """Returns whether a node has come a short time ago, so that some do not know yet who is present."""
        until = round(JOIN_SECONDS * S) + 2 * _SOON
        return any(come <= at <= come + until for comings in self._comings.values() for come in comings)

    def _comes_later(self, node: int, at: int) -> bool:
        """Returns whether a node comes after a time, for the first time."""
        return self._comings.get(node, [at])[0] > at

    def _has_come_after(self, read: Read, before: Sequence[Read]) -> bool:
        """Returns whether a node has come, or come again, after those that had the block had ended."""
        comings = [come for come in self._comings[read.node] if come <= read.at]
        is_early = len(comings) == 1 and comings[0] <= _SOON  # then nobody may have ended yet
        return not is_early and all(each.process.is_dead and each.process.ended <= comings[-1] for each in before)

    def _have_left_without(self, read: Read, before: Sequence[Read]) -> bool:
        """Returns whether all that had the block have ended while something kept them and the node from each other."""
        if not all(each.process.has_ended_by(read.at) for each in before):
            return False
        ended = max(each.process.ended for each in before)
        nodes = {read.node, *(each.node for each in before)}
        return any(each.concerns(nodes) and each.begin <= ended <= each.end + _WARY for each in self.troubles)

    def _has_ended(self, keeper: int, read: Read, before: Sequence[Read]) -> bool:
        """Returns whether the node that keeps a block has ended since it had it, and was not there again for long."""
        had = [each.process for each in before if each.node == keeper]
        ended = max((process.ended for process in had), default=0)
        later = [each for each in self._scheduler.processes if each.node == keeper and each.began > ended]
        is_back = any(each.began + _SETTLED < read.at and not each.has_ended_by(read.at) for each in later)
        return bool(had) and all(process.has_ended_by(read.at) for process in had) and not is_back

    @staticmethod
    def _is_cause(trouble: Trouble, at: int, nodes: Set[int]) -> bool:
        """Returns whether something was wrong with one of the nodes, or had been a short time before."""
        wary = _DISTRUSTED if trouble.kind in SPOILING else _WARY
        return trouble.concerns(nodes) and trouble.begin <= at <= trouble.end + wary
