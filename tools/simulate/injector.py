"""Carries out the faults of a schedule: begins each when it is due, ends it, and notes its possible effects."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import replace
from functools import partial

from dlio.dataset.manifest import NAME as MANIFEST
from dlio.stage.copies.base_folder import CONTROL
from tools.simulate.causes import Trouble
from tools.simulate.cluster import MEET, SOURCE, Cluster
from tools.simulate.disk import Disk
from tools.simulate.faults import FINISH, STEADY, Fault
from tools.simulate.network import LATENCIES, WINDOW
from tools.simulate.process import Process
from tools.simulate.scheduler import S
from tools.simulate.source import SPOILT
from tools.simulate.storage import NAME, Call

_FOR_GOOD = ("absent", "gone")
_NAMES = {"source": SOURCE, "meet": MEET}
#: Faults that make no node read from the source what another has read.
_HARMLESS = {
    "pids", "part", "pieces", "eager", "latency", "bandwidth", "skew", "day", "late", "leave", "think", "twice", "doubt"
}  # fmt: skip


class Injector:
    """Carries out faults on a cluster.

    Attributes:
        happened: the kinds that had an effect, and how often.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._undo: dict[int, Callable[[], object]] = {}
        self._moments = Counter[str]()
        self._directed: list[Fault] = []
        self._is_healed = False
        self.happened: dict[str, int] = {}

    def plan(self, faults: Collection[Fault]) -> None:
        """Injects faults when they are due."""
        self._directed = [fault for fault in faults if fault.moment]
        if self._directed:
            self._cluster.storage.listeners.append(self._heard)
        for fault in faults:
            if fault.at and not fault.moment:
                self._cluster.scheduler.call_at_event(fault.at, partial(self._begin, fault))
            elif not fault.at:
                self._begin(fault)

    def _heard(self, call: Call) -> None:
        """Injects the faults of this moment, before the task that reached it continues."""
        scheduler = self._cluster.scheduler
        task = scheduler.current
        if task is None or task.process.is_dead or call.disk.name in _NAMES.values():
            return
        moment = FINISH if call.kind == NAME and call.name == MANIFEST and CONTROL not in call.path else call.kind
        self._moments[moment] += 1
        due = [each for each in self._directed if (each.moment, each.at) == (moment, self._moments[moment])]
        for fault in due:
            scheduler.call_at(scheduler.now, partial(self._begin, fault, task.process))
        if due:
            scheduler.pause(0)

    def heal(self) -> None:
        """Ends all faults."""
        self._is_healed = True
        self._cluster.scheduler.note("heal all")
        for number in list(self._undo):
            self._end(number)
        weather = self._cluster.network.weather
        weather.reset = weather.refused = weather.lost = 0.0
        weather.window = WINDOW

    def _begin(self, fault: Fault, at: Process | None = None) -> None:
        """Begins a fault, a directed one at a process."""
        if self._is_healed:
            return
        process = at
        if at and fault.kind not in ("kill", "stop"):
            distance = fault.other - fault.node
            fault = replace(fault, node=at.node, other=(at.node + distance) % self._cluster.size.nodes)
        elif fault.kind in ("kill", "stop") and (living := self._cluster.living()):
            process = at or living[fault.amount % len(living)]
        undo = self._carry_out(fault, process)
        if undo is None:
            return
        self.happened[fault.kind] = self.happened.get(fault.kind, 0) + 1
        trouble = self._trouble(fault, process)
        number = len(self.happened) + len(self._undo) + self._cluster.scheduler.events * 1000
        self._undo[number] = partial(self._undone, undo, trouble, self._disk(fault))
        if fault.kind not in STEADY:
            scheduler = self._cluster.scheduler
            scheduler.call_at(scheduler.now + fault.lasts, lambda: self._end(number))

    def _trouble(self, fault: Fault, process: Process | None) -> Trouble | None:
        """Notes what nodes a fault concerns."""
        if fault.kind in _HARMLESS:
            return None
        nodes: set[int] | None = {fault.node}
        if fault.kind in ("kill", "stop") and process:
            nodes = {process.node}
        elif fault.kind in ("cut", "clog"):
            nodes = {fault.node, fault.other}
        elif fault.kind in ("reset", "refused", "lost", "window") or fault.kind.startswith(("source-", "meet-")):
            nodes = None
        return self._cluster.oracle.causes.begin(fault.kind, nodes)

    def _undone(self, undo: Callable[[], object], trouble: Trouble | None, disk: Disk | None) -> None:
        undo()
        if trouble and trouble.kind not in _FOR_GOOD:
            trouble.end = max(self._cluster.scheduler.now, disk.busy_until if disk else 0)

    def _disk(self, fault: Fault) -> Disk | None:
        """Returns the disk that a fault concerns, if any."""
        place, _, on_disk = fault.kind.partition("-")
        return self._cluster.storage.disks[_NAMES.get(place, f"node{fault.node}")] if on_disk else None

    def _end(self, number: int) -> None:
        if undo := self._undo.pop(number, None):
            undo()

    def _carry_out(self, fault: Fault, process: Process | None) -> Callable[[], object] | None:
        """Begins a fault; returns what ends it, None if it could not begin."""
        cluster, network, kind = self._cluster, self._cluster.network, fault.kind
        on_disk = kind.partition("-")[2]
        if on_disk in SPOILT:
            cluster.source.spoil(on_disk, fault.amount)
            return cluster.source.mend
        if disk := self._disk(fault):
            disk.inject(on_disk, fault.amount)
            return disk.heal
        if kind in ("kill", "stop"):
            if process is None:
                return None
            (process.kill if kind == "kill" else process.stop)()
            return _nothing if kind == "kill" else process.resume
        if kind in ("power", "gone"):
            if network.is_dark(fault.node) or (kind == "gone" and not cluster.may_lack(fault.node)):
                return None
            cluster.lose_power(fault.node)
            return _nothing if kind == "gone" else partial(network.lighten, fault.node)
        if kind in ("cut", "isolate"):
            return self._cut(fault)
        if kind == "clog":
            network.slow[fault.node, fault.other] = fault.amount
            return partial(network.slow.pop, (fault.node, fault.other), None)
        return self._set(fault)

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

    def _set(self, fault: Fault) -> Callable[[], object] | None:
        """Sets what lasts for the whole schedule, or until all is healed."""
        weather, clock = self._cluster.network.weather, self._cluster.world.machines[fault.node].clock
        match fault.kind:
            case "absent":
                return _nothing if self._cluster.may_lack(fault.node) else None
            case "pids":
                self._cluster.world.reuse = fault.amount / 1000
            case "reset" | "refused" | "lost" | "pieces" | "part":
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
        return _nothing


def _nothing() -> None:
    """Ends the faults that have no end."""
