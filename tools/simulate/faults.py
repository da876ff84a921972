"""What goes wrong in a schedule: drawn at first, so that it can be shown, replayed in part, and shortened.

Each seed draws which kinds of faults are on, how often each comes and how strong it is ("swarm"). So some schedules
have a single fault, and some have many at once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial

from dlio.errors import UsageError
from tools.simulate.chance import Chance
from tools.simulate.cluster import MEET, SOURCE, Cluster, Size
from tools.simulate.disk import FAULTS as DISK_FAULTS
from tools.simulate.network import LATENCIES, WINDOW
from tools.simulate.scheduler import MS, S
from tools.simulate.source import SPOILT

_LATEST = 20_000  # event; most schedules are shorter
_LONGEST = 30 * S
_ON = (0.02, 0.05, 0.1, 0.25, 0.5)  # probability that a kind is on, of which a seed draws one
_MOST = 3  # faults of one kind

#: What a fault's amount is, from and to.
_AMOUNTS = {
    "kill": (0, 1 << 20), "stop": (0, 1 << 20), "power": (0, 0), "cut": (0, 0), "isolate": (0, 0),
    "clog": (1 * MS, 10 * S), "reset": (1, 50), "refused": (1, 300), "lost": (1, 300), "pieces": (1, 900),
    "eager": (1, 500), "window": (1_024, 1 << 20), "latency": (0, len(LATENCIES) - 1), "skew": (-200, 200),
    "bandwidth": (10_000_000, 10_000_000_000), "day": (-86_400, 86_400), "late": (1, 20_000), "leave": (0, 100),
    "think": (1, 3_000),
}  # fmt: skip
_DISK_AMOUNTS = {
    "full": (0, 2_000_000), "quota": (0, 2_000_000), "slow": (2, 2_000), "hang": (10, 60_000),
}  # fmt: skip
_OFF_DISK = {
    "source": {"full", "quota", "eio-write", "eio-sync"},
    "meet": {"full", "quota", "flip"},
    "disk": set[str](),
}
_STEADY = {
    "reset",
    "refused",
    "lost",
    "pieces",
    "eager",
    "window",
    "latency",
    "bandwidth",
    "skew",
    "late",
    "leave",
    "think",
}
_NAMES = {"source": SOURCE, "meet": MEET}


def kinds() -> list[str]:
    """Returns the names of all faults."""
    on_disks = [f"{place}-{kind}" for place, off in _OFF_DISK.items() for kind in DISK_FAULTS if kind not in off]
    return [*_AMOUNTS, *on_disks, *(f"source-{kind}" for kind in SPOILT)]


def chosen(text: str) -> list[str]:
    """Returns the kinds of faults that a text names: "all", "none", or names with commas; raises UsageError."""
    if text in ("all", "none"):
        return kinds() if text == "all" else []
    found = [name.strip() for name in text.split(",")]
    if unknown := [name for name in found if name not in kinds()]:
        raise UsageError(f"there are no faults {', '.join(unknown)}: choose all, none, or some of {', '.join(kinds())}")
    return found


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that goes wrong.

    Attributes:
        at: the number of the event before which it begins; 0 for the begin of the schedule.
        kind: of `kinds`.
        node: where.
        other: another node, for what lies between two.
        amount: how strong; what it means depends on the kind.
        lasts: ns until it is over; it ends when all is healed, too.
    """

    at: int
    kind: str
    node: int
    other: int
    amount: int
    lasts: int

    def __str__(self) -> str:
        between = f" to {self.other}" if self.kind in ("cut", "clog") else ""
        return f"event {self.at}: {self.kind} at node {self.node}{between}, {self.amount}, {self.lasts / S:g} s"


def drawn(seed: int, size: Size, on: Collection[str]) -> list[Fault]:
    """Returns the faults of a schedule, by their times.

    Args:
        seed: of the schedule.
        size: of the cluster.
        on: the kinds that may be drawn.
    """
    swarm, found = Chance(seed, "swarm"), list[Fault]()
    how_often = swarm.pick(_ON)
    for kind in kinds():
        is_on, chance = swarm.happens(how_often), Chance(seed, f"fault {kind}")
        if not is_on or kind not in on:
            continue
        for _ in range(1 if kind in _STEADY else chance.between(1, _MOST)):
            node = chance.below(size.nodes)
            other = (node + 1 + chance.below(max(1, size.nodes - 1))) % size.nodes
            amount = _amount(kind, chance)
            at = 0 if kind in _STEADY else chance.delay(1, _LATEST)
            found.append(Fault(at, kind, node, other, amount, chance.delay(1 * MS, _LONGEST)))
    return sorted(found, key=lambda fault: fault.at)


def _amount(kind: str, chance: Chance) -> int:
    least, most = _AMOUNTS.get(kind) or _DISK_AMOUNTS.get(kind.partition("-")[2]) or (1, 5)
    return chance.between(least, most) if least < 1 else chance.delay(least, most)


class Injector:
    """Carries out faults on a cluster.

    Attributes:
        happened: the kinds that had an effect, and how often.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._undo: dict[int, Callable[[], object]] = {}
        self._is_healed = False
        self.happened: dict[str, int] = {}

    def plan(self, faults: Collection[Fault]) -> None:
        """Has faults come when they are due."""
        for fault in faults:
            if fault.at:
                self._cluster.scheduler.call_at_event(fault.at, partial(self._begin, fault))
            else:
                self._begin(fault)

    def heal(self) -> None:
        """Ends all faults."""
        self._is_healed = True
        self._cluster.scheduler.note("heal all")
        for number in list(self._undo):
            self._end(number)
        weather = self._cluster.network.weather
        weather.reset = weather.refused = weather.lost = 0.0
        weather.window = WINDOW

    def _begin(self, fault: Fault) -> None:
        if self._is_healed:
            return
        undo = self._carry_out(fault)
        self.happened[fault.kind] = self.happened.get(fault.kind, 0) + 1
        if undo:
            number = len(self.happened) + len(self._undo) + self._cluster.scheduler.events * 1000
            self._undo[number] = undo
            if fault.kind not in _STEADY:
                scheduler = self._cluster.scheduler
                scheduler.call_at(scheduler.now + fault.lasts, lambda: self._end(number))

    def _end(self, number: int) -> None:
        if undo := self._undo.pop(number, None):
            undo()

    def _carry_out(self, fault: Fault) -> Callable[[], object] | None:
        """Begins a fault; returns what ends it."""
        cluster, network, kind = self._cluster, self._cluster.network, fault.kind
        place, _, on_disk = kind.partition("-")
        if on_disk in SPOILT:
            cluster.source.spoil(on_disk, fault.amount)
            return cluster.source.mend
        if on_disk:
            disk = cluster.storage.disks[_NAMES.get(place, f"node{fault.node}")]
            disk.inject(on_disk, fault.amount)
            return disk.heal
        if kind in ("kill", "stop"):
            living = cluster.living()
            if not living:
                return None
            process = living[fault.amount % len(living)]
            (process.kill if kind == "kill" else process.stop)()
            return None if kind == "kill" else process.resume
        if kind == "power":
            if network.is_dark(fault.node):
                return None
            cluster.lose_power(fault.node)
            return lambda: network.lighten(fault.node)
        if kind in ("cut", "isolate"):
            return self._cut(fault)
        if kind == "clog":
            network.slow[fault.node, fault.other] = fault.amount
            return partial(network.slow.pop, (fault.node, fault.other), None)
        self._set(fault)
        return None

    def _cut(self, fault: Fault) -> Callable[[], object]:
        network, others = self._cluster.network, range(self._cluster.size.nodes)
        around = [(fault.node, other) for other in others] + [(other, fault.node) for other in others]
        ways = [(fault.node, fault.other)] if fault.kind == "cut" else around
        ways = [way for way in ways if way[0] != way[1]]
        for way in ways:
            network.cut(*way)

        def undo() -> None:
            for way in ways:
                network.heal(*way)

        return undo

    def _set(self, fault: Fault) -> None:
        """Sets what lasts for the whole schedule, or until all is healed."""
        weather, clock = self._cluster.network.weather, self._cluster.world.machines[fault.node].clock
        match fault.kind:
            case "reset" | "refused" | "lost" | "pieces":
                setattr(weather, fault.kind, fault.amount / 1000)
            case "eager":
                self._cluster.scheduler.eagerness = fault.amount / 1000
            case "window":
                weather.window = fault.amount
            case "bandwidth":
                weather.bandwidth = fault.amount
            case "latency":
                weather.latency = LATENCIES[fault.amount]
            case "skew":
                clock.ppm = fault.amount
            case "day":
                clock.offset += fault.amount * S
