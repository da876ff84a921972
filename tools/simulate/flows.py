"""Bandwidth as flows: transfers share the links at both ends; an event comes when a flow begins or ends."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from functools import partial

from tools.simulate.scheduler import S, Scheduler

_EXACT = 16  # nodes up to which the shares are exact max-min; above, one pass
_STEP = 10_000_000  # ns between two passes above that


@dataclass(eq=False, slots=True)
class _Flow:
    ends: tuple[Hashable, Hashable]
    left: float  # bytes
    done: Callable[[], None]
    rate: float = 0.0  # bytes a ns
    since: int = 0
    turn: int = 0
    is_new: bool = field(default=True)


class Flows:
    """Transfers on links of one bandwidth each, at the sending and at the receiving end.

    Args:
        scheduler: of the schedule.
        bandwidth: returns the bytes a second of one end, (node, direction).
        num_nodes: decides how exactly the shares are computed.
    """

    def __init__(self, scheduler: Scheduler, bandwidth: Callable[[Hashable], int], num_nodes: int) -> None:
        self._scheduler, self._bandwidth = scheduler, bandwidth
        self._is_exact = num_nodes <= _EXACT
        self._flows: dict[_Flow, None] = {}
        self._counts = Counter[Hashable]()  # of flows, by their ends
        self._is_due = False
        self.sent = Counter[int]()  #: bytes, by node
        self.least = 0  #: bytes that take time; fewer belong to a larger transfer

    def begin(self, source: int, target: int, num_bytes: int, done: Callable[[], None]) -> None:
        """Begins a flow between two nodes; `done` is called when its last byte has left."""
        self.sent[source] += num_bytes
        if num_bytes < self.least:
            done()
            return
        flow = _Flow(((source, "out"), (target, "in")), float(num_bytes), done, 0.0, self._scheduler.now)
        self._flows[flow] = None
        self._counts.update(flow.ends)
        if not self._is_exact:  # until the next pass
            self._go_on(flow, min(self._bandwidth(end) / self._counts[end] for end in flow.ends) / S)
        self._change()

    def _change(self) -> None:
        """Computes the shares again, once for all changes of one instant."""
        if not self._is_due:
            self._is_due = True
            now = self._scheduler.now
            self._scheduler.call_at(now if self._is_exact else now - now % _STEP + _STEP, self._share)

    def _share(self) -> None:
        self._is_due = False
        flows = list(self._flows)
        rates = exact_shares if self._is_exact else near_shares
        for flow, rate in zip(flows, rates([flow.ends for flow in flows], self._bandwidth), strict=True):
            if rate != flow.rate or flow.is_new:
                self._go_on(flow, rate)

    def _go_on(self, flow: _Flow, rate: float) -> None:
        """Continues a flow at a rate."""
        now = self._scheduler.now
        flow.left = max(0.0, flow.left - (now - flow.since) * flow.rate)
        flow.rate, flow.since, flow.is_new, flow.turn = rate, now, False, flow.turn + 1
        at = now + (int(flow.left / rate) + 1 if rate else 10**6 * S)
        self._scheduler.call_at(at, partial(self._end, flow, flow.turn))

    def _end(self, flow: _Flow, turn: int) -> None:
        if flow.turn == turn and flow in self._flows:
            del self._flows[flow]
            self._counts.subtract(flow.ends)
            flow.done()
            if self._flows:
                self._change()


def near_shares(flows: Sequence[tuple[Hashable, Hashable]], bandwidth: Callable[[Hashable], int]) -> list[float]:
    """Returns bytes a ns for each flow: the smaller of the equal shares at its ends."""
    counts: dict[Hashable, int] = {}
    for ends in flows:
        for end in ends:
            counts[end] = counts.get(end, 0) + 1
    share = {end: bandwidth(end) / count / S for end, count in counts.items()}
    return [min(share[source], share[target]) for source, target in flows]


def exact_shares(flows: Sequence[tuple[Hashable, Hashable]], bandwidth: Callable[[Hashable], int]) -> list[float]:
    """Returns bytes a ns for each flow, max-min fair: the fullest end is shared first, then what is left."""
    rates, left, open_at = [0.0] * len(flows), dict[Hashable, float](), dict[Hashable, dict[int, None]]()
    for number, ends in enumerate(flows):
        for end in ends:
            left.setdefault(end, bandwidth(end) / S)
            open_at.setdefault(end, {})[number] = None
    while open_at:
        fullest = min(open_at, key=lambda end: left[end] / len(open_at[end]))
        share = left[fullest] / len(open_at[fullest])
        for number in open_at.pop(fullest):
            rates[number] = share
            for end in flows[number]:
                if end in open_at:
                    del open_at[end][number]
                    left[end] = max(0.0, left[end] - share)
                    if not open_at[end]:
                        del open_at[end]
    return rates
