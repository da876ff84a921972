"""The simulator of staging: flows over a machine in time, event by event; pure, and the same for the same seed.

Exact: which node reads which shard or piece, as the strategies place them; the bytes and files of each node; the rates
at which nodes read at once, which share source and switches fairly (max-min); the page cache that runs ahead of each
disk; which nodes are stragglers or fail, and when.

Aggregated: the shards of a node are one flow, whose rate is bounded by its threads and the source's latency; an event
is the end of a node's flow, a full or empty page cache, or a failure, and events within a thousandth of the elapsed
time are one; what the nodes of a broadcast read and pass on is one flow, as slow as the slowest of them reads or sends,
after the blocks that are read ahead, the first round, and a wait for the first files, and each takes it at its own
rate; storage targets are a closed queueing network of equal servers, of which k readers keep k / (k + targets - 1)
busy; the metadata server slows all readers by the same factor.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from html import escape
from itertools import chain, pairwise

import numpy as np
from numpy.typing import NDArray

from dlio.errors import UsageError
from dlio.stage.planning.cost import Machine
from dlio.stage.planning.flows import Array, Flows, idle_seconds, ratio, shared
from dlio.stage.planning.homes import PIECE_BYTES

PERCENTILES = (50, 90, 99, 100)
MOST_NODES = 1_000_000
_TOGETHER = 1e-3  # of the elapsed time: events that near are one
_MOST_FAILURES = 1000
_MOMENTS = 200  # of the timeline
_WIDTH, _HEIGHT, _LEFT, _TOP = 640, 240, 50, 40  # of the plot of the timeline
_COLOURS = (
    "svg { fill: #1d2733 } .paper { fill: #fff } "
    "@media (prefers-color-scheme: dark) { svg { fill: #e2e6ec } .paper { fill: #14161b } }"
)
_CURVES = (("#1f77b4", "data landed"), ("#d95f02", "nodes ready"))


@dataclass(frozen=True, slots=True)
class Simulation:
    """What a simulation found.

    Attributes:
        strategy: its name.
        num_nodes: of the job.
        seconds: until the last node has its part.
        percentiles: the seconds until a percentage of the nodes have theirs, by that percentage.
        num_bytes: moved over each kind of link: from the source, between nodes, and to local storage.
        opens: files opened at the source.
        failures: of nodes.
        busy: the share of the time that each part of the machine works, where it works most.
        busiest: the name of the part that works most.
        timeline: moments as (seconds, share of the bytes that have landed, share of the nodes that have theirs).
    """

    strategy: str
    num_nodes: int
    seconds: float
    percentiles: dict[int, float]
    num_bytes: dict[str, int]
    opens: int
    failures: int
    busy: dict[str, float]
    busiest: str
    timeline: tuple[tuple[float, float, float], ...]


def simulated(strategy: str, flows: Flows, machine: Machine, seed: int = 0) -> Simulation:
    """Returns what happens when `flows` are moved on `machine`; `seed` chooses stragglers and failures.

    Raises:
        UsageError: nodes fail so often that staging does not end.
    """
    run = _Run(flows, machine, np.random.default_rng(seed))
    moments = list(run.moments())
    seconds = float(run.done_at.max(initial=0.0))
    busy = run.busy(seconds)
    ends = np.percentile(run.done_at, PERCENTILES, method="inverted_cdf")
    return Simulation(
        strategy,
        len(flows.read),
        seconds,
        dict(zip(PERCENTILES, map(float, ends), strict=True)),
        {name: int(total.sum()) for name, total in run.moved().items()},
        round((run.rounds * flows.opens).sum()),
        run.num_failures,
        busy,
        max(busy, key=busy.__getitem__),
        tuple(moments[:: -(-len(moments) // _MOMENTS)]) + tuple(moments[-1:]),
    )


class _Run:
    """The state of a simulation: arrays over the nodes."""

    def __init__(self, flows: Flows, machine: Machine, rng: np.random.Generator) -> None:
        self.flows, self.machine, self.rng = flows, machine, rng
        n = len(flows.read)
        speed = np.where(rng.random(n) < machine.slow_share, machine.slow_factor, 1.0)
        self.network, self.disk = speed * machine.network, speed * (np.inf if flows.returns else machine.local)
        self.blocks = np.minimum(PIECE_BYTES, np.maximum(ratio(flows.read, flows.opens), 1.0))  # that a thread reads
        self.client = speed * self._client()
        self.ahead = np.minimum(flows.read, flows.threads * self.blocks * bool(flows.exchange))  # of the first round
        self.first_round = max(flows.exchange - 1, 0) * PIECE_BYTES  # that each node receives
        self.per_byte = ratio(flows.read - self.ahead, flows.landed)  # read later, for each byte that lands
        self.now, self.num_failures = 0.0, 0
        self.left = flows.landed.copy()  # to land, in the memory of the node
        self.backlog = np.zeros(n)  # landed, but not on the disk
        self.paused_until = np.zeros(n)
        self.rounds = np.ones(n)  # of each flow: one, and what of it was lost by failures
        self.done_at = np.full(n, self._start())
        self.failing_at = self._next_failure()

    def moments(self) -> Iterator[tuple[float, float, float]]:
        """Yields a moment after each event until all nodes have their parts."""
        total = max(self.flows.landed.sum(), 1.0)
        self.now = self._start()
        while (busy := self._busy()).any():
            arriving = self._arriving()
            writing = np.where(self.backlog > 0, self.disk, np.minimum(self.disk, arriving))
            self._advance(self._until_event(arriving, writing), arriving, writing, busy)
            if self.now >= self.failing_at:
                self._fail()
            yield self.now, 1 - float(self.left.sum() + self.backlog.sum()) / total, 1 - float(self._busy().mean())
        yield self.now, 1.0, 1.0

    def _busy(self) -> NDArray[np.bool_]:
        """Returns which nodes lack a part."""
        return (self.left > 0) | (self.backlog > 0)

    def _advance(self, step: float, arriving: Array, writing: Array, busy: NDArray[np.bool_]) -> None:
        landed = np.minimum(self.left, arriving * step)
        written = np.minimum(self.backlog + landed, writing * step)
        ends = self.now + np.maximum(ratio(self.left, arriving), ratio(self.left + self.backlog, writing))
        self.left = _whole(self.left - landed, self.flows.landed)
        self.backlog = _whole(self.backlog + landed - written, self.flows.landed)
        over = busy & (self.left == 0) & (self.backlog == 0)
        self.done_at[over] = np.clip(ends[over], self.now, self.now + step)
        self.now += step

    def _arriving(self) -> Array:
        """Returns the bytes per second that land in the memory of each node."""
        full = self.backlog >= self.machine.cache_bytes
        active = (self.left > 0) & (self.paused_until <= self.now)
        limit = np.where(full, self.disk, np.inf)
        if self.flows.exchange:
            received = ratio(np.maximum(self.flows.received - self.first_round, 0), self.flows.landed)
            own = np.minimum(limit, ratio(self.network, received, np.inf))
            return np.where(active, np.minimum(self._passed_on(), own), 0.0)
        wanted = np.where(active, np.minimum(self.client, limit), 0.0)
        machine = self.machine
        got = shared(wanted, self._source(active), machine.switch_nodes, machine.uplink)
        opening = float((got * ratio(self.flows.opens, self.flows.read)).sum())
        return got * min(1.0, machine.opens / opening) if machine.opens and opening else got

    def _passed_on(self) -> float:
        """Returns the rate at which nodes read the data set, each its part, and pass it on to all others."""
        flows, machine = self.flows, self.machine
        rates = [
            ratio(self.client, self.per_byte, np.inf).min(),
            ratio(self.network, self.per_byte * (flows.exchange - 1), np.inf).min(),
            self._source(self.left > 0) / max(self.per_byte.sum(), 1e-300),
            1e9 * flows.landed.max(),  # if nothing limits it after the first round, the rest lands in a nanosecond
        ]
        if machine.switch_nodes:
            groups = np.add.reduceat(self.per_byte, np.arange(0, len(self.per_byte), machine.switch_nodes))
            rates.append(machine.uplink / max(groups.max(), 1e-300))
        if machine.opens:
            rates.append(machine.opens * flows.landed.max() / max(flows.opens.sum(), 1.0))
        return float(min(rates))

    def _client(self) -> Array:
        """Returns the rate of each node alone at the source: its threads hide the latency as far as they can."""
        flows, machine = self.flows, self.machine
        most = machine.client / (1 + flows.returns)
        turn = machine.request_seconds + self.blocks / most
        return np.minimum(most, flows.threads * self.blocks / turn)

    def _source(self, active: NDArray[np.bool_]) -> float:
        """Returns the rate of the source while this many readers ask its targets at random."""
        readers, targets = float(active.sum()) * self.flows.threads, self.machine.num_targets
        share = readers / (readers + targets - 1) if targets and readers else 1.0
        return self.machine.source * share / (1 + self.flows.returns)  # which serves what is written, too

    def _start(self) -> float:
        """Returns the seconds without data: a request; a broadcast's blocks read ahead, first round, and idle time."""
        everyone = np.ones(len(self.left), bool)
        reading = max(self.ahead.sum() / self._source(everyone), (self.ahead / self.client).max(initial=0.0))
        passing = self.first_round / self.network.min(initial=np.inf)
        return float(self.machine.request_seconds + reading + passing + self._idle()) * bool(self.flows.landed.any())

    def _idle(self) -> float:
        flows, landing = self.flows, float(np.median(np.minimum(self.disk, self.network)))
        source = min(self.machine.source, self.client.sum())
        return idle_seconds(flows.read.sum(), flows.passed, len(flows.read), source, landing)

    def _until_event(self, arriving: Array, writing: Array) -> float:
        growing = arriving - writing
        room = np.maximum(self.machine.cache_bytes - self.backlog, 0)
        ends = [
            ratio(self.left, arriving, np.inf),
            np.where(growing > 0, ratio(room, growing, np.inf), np.inf),
            np.where(growing < 0, ratio(self.backlog, -growing, np.inf), np.inf),
            np.where(self.paused_until > self.now, self.paused_until - self.now, np.inf),
        ]
        nearest = min(float(times[times > 0].min(initial=np.inf)) for times in ends)
        return float(min(max(nearest, self.now * _TOGETHER), max(self.failing_at - self.now, 1e-9)))

    def _next_failure(self) -> float:
        rate = self.machine.failures * len(self.left) / 3600
        return self.now + self.rng.exponential(1 / rate) if rate else np.inf

    def _fail(self) -> None:
        """Empties a node, which begins again: others read its part of a broadcast."""
        self.num_failures += 1
        if self.num_failures > _MOST_FAILURES:
            raise UsageError(f"after {self.now:,.0f} s {_MOST_FAILURES} nodes have failed: staging does not end")
        failed = int(self.rng.integers(len(self.left)))
        self.rounds[failed] += ratio(self.flows.landed - self.left, self.flows.landed)[failed]
        self.left[failed], self.backlog[failed] = self.flows.landed[failed], 0.0
        self.paused_until[failed] = self.now + self.machine.restart_seconds
        self.failing_at = self._next_failure()

    def moved(self) -> dict[str, Array]:
        """Returns the bytes that each node has moved over each kind of link."""
        flows = self.flows
        times = {"source": flows.read, "network": flows.received, "local storage": flows.landed}
        if flows.returns:
            times = {"source": 2 * flows.read, "network": flows.received, "local storage": np.zeros_like(flows.read)}
        return {name: self.rounds * num_bytes for name, num_bytes in times.items()}

    def busy(self, seconds: float) -> dict[str, float]:
        """Returns for each part of the machine the share of the time that it works, where it works most."""
        moved, machine = self.moved(), self.machine
        read, passed, landed = moved.values()
        found = {
            "source": read.sum() / machine.source,
            "client": (self.rounds * self.flows.read / self.client).max(initial=0),
            "network": (passed / self.network).max(initial=0),
            "local storage": (landed / self.disk).max(initial=0),
        }
        if machine.switch_nodes:
            groups = np.add.reduceat(read, np.arange(0, len(read), machine.switch_nodes))
            found["switch"] = groups.max() / machine.uplink
        if machine.opens:
            found["metadata"] = (self.rounds * self.flows.opens).sum() / machine.opens
        return {name: min(1.0, float(work / seconds)) if seconds else 0.0 for name, work in found.items()}


def _whole(left: Array, total: Array) -> Array:
    """Returns what is left, without the residue of rounding."""
    kept: Array = np.where(left > 1e-9 * total, left, 0.0)
    return kept


def timeline(found: Simulation) -> str:
    """Returns an SVG of the data that have landed, and the nodes that are ready."""
    title = f"{found.strategy} on {found.num_nodes:,} nodes: {found.seconds:,.1f} s, limited by {found.busiest}"
    ticks = [
        *(_text(_LEFT + x * _WIDTH / 4, _TOP + _HEIGHT + 16, f"{found.seconds * x / 4:,.4g} s") for x in range(5)),
        *(_text(_LEFT - 22, _TOP + _HEIGHT * (1 - y / 2) + 4, f"{50 * y} %") for y in range(3)),
    ]
    curves = [
        f'<polyline fill="none" stroke="{colour}" stroke-width="2" points="{_points(found, 1 + number)}"/>'
        + _text(_LEFT + 90 + 160 * number, _TOP - 6, name, colour)
        for number, (colour, name) in enumerate(_CURVES)
    ]
    frame = f'<rect x="{_LEFT}" y="{_TOP}" width="{_WIDTH}" height="{_HEIGHT}" fill="none" stroke="#888"/>'
    return svg(_WIDTH + _LEFT + 40, _HEIGHT + _TOP + 30, [_text(_LEFT + _WIDTH / 2, 16, title), frame, *ticks, *curves])


def svg(width: float, height: float, parts: Iterable[str]) -> str:
    """Returns the text of an SVG with these parts, dark on light or as the reader's browser prefers."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" '
        f'font-size="12" text-anchor="middle"><style>{_COLOURS}</style>'
        '<rect class="paper" width="100%" height="100%"/>\n' + "\n".join(parts) + "\n</svg>\n"
    )


def _text(x: float, y: float, text: str, colour: str = "") -> str:
    fill = f' fill="{colour}"' if colour else ""
    return f'<text x="{x:.1f}" y="{y:.1f}"{fill}>{escape(text)}</text>'


def _points(found: Simulation, column: int) -> str:
    """Returns the points of a curve: bytes land all the time, nodes become ready at a moment."""
    whole = max(found.seconds, 1e-9)
    points = [(each[0] / whole, each[column]) for each in ((0.0, 0.0, 0.0), *found.timeline)]
    if column == 2:
        steps = (((after[0], before[1]), after) for before, after in pairwise(points))
        points = [points[0], *chain.from_iterable(steps)]
    return " ".join(f"{_LEFT + x * _WIDTH:.1f},{_TOP + (1 - y) * _HEIGHT:.1f}" for x, y in points)
