"""The faults of a schedule: drawn at first, so that it can be shown, replayed in part, and shortened.

Each seed draws which kinds of faults are on, how often each comes and how strong it is ("swarm"). So some schedules
have a single fault, and some have many at once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from dlio.errors import UsageError
from tools.simulate.chance import Chance
from tools.simulate.cluster import Size
from tools.simulate.disk import FAULTS as DISK_FAULTS
from tools.simulate.disk import SYNC, WRITE
from tools.simulate.network import LATENCIES
from tools.simulate.scheduler import MS, S
from tools.simulate.source import SPOILT
from tools.simulate.storage import NAME

FINISH = "finish"  #: a copy gets its manifest
_LATEST = 20_000  # event; most schedules are shorter
_LONGEST = 50 * S  # longer than the silence after which a process counts as dead
_ON = (0.0, 0.0, 0.0, 0.0, 0.02, 0.05, 0.1, 0.25, 0.5)  # probability that a kind is on; 0 for a few kinds
_OFTEN = 4  # times as likely among a few: faults that end or cut off nodes
_MOST = 3  # faults of one kind
_AT_WORK = 1_000  # event; until then the processes of most schedules are running
_PAIRS = 0.15  # probability of two that show little by themselves
_SILENT = 31 * S  # longer than the heartbeat of a claim may be silent
#: What shows little by itself: in some schedules both come, the second one to all nodes if it has no moment of its own.
_TOGETHER = (
    ("twice", "stop"), ("twice", "kill"), ("twice", "disk-stale"), ("power", "disk-eio-sync"), ("doubt", "source-flip"),
    ("late", "think"),
)  # fmt: skip
#: What a node does when a fault comes that does not wait for the number of an event, and how often before at most.
_MOMENTS = {WRITE: 60, SYNC: 40, NAME: 40, FINISH: 4}
_DRAWN = (WRITE, SYNC, NAME, FINISH, FINISH)
_DIRECTED = {"kill", "stop", "power", "gone", "isolate", "cut"}

#: What a fault's amount is, from and to.
_AMOUNTS = {
    "kill": (0, 1 << 20), "stop": (0, 1 << 20), "power": (0, 0), "cut": (0, 0), "isolate": (0, 0), "gone": (0, 0),
    "absent": (0, 0), "pids": (1, 1_000), "part": (100, 900),
    "clog": (1 * MS, 10 * S), "reset": (1, 50), "refused": (1, 300), "lost": (1, 300), "pieces": (1, 900),
    "eager": (1, 500), "window": (1_024, 1 << 20), "latency": (0, len(LATENCIES) - 1), "skew": (-200, 200),
    "bandwidth": (10_000_000, 10_000_000_000), "day": (-86_400, 86_400), "late": (1, 20_000), "leave": (0, 100),
    "think": (1, 40_000), "twice": (1, 1), "doubt": (1, 500),
}  # fmt: skip
#: What happens; those of disks and of the source's files are described where they are carried out.
_ABOUT = {
    "kill": "a process ends at once", "stop": "a process is stopped, and continues later",
    "power": "a node loses power for a while", "gone": "a node loses power for good", "absent": "a node never comes",
    "cut": "no message comes from one node to another", "isolate": "a node reaches no other, and no other reaches it",
    "clog": "messages from one node to another come AMOUNT ns later",
    "pids": "AMOUNT of 1,000 new processes get a dead one's id",
    "reset": "AMOUNT of 1,000 messages break their connection", "refused": "AMOUNT of 1,000 connections are refused",
    "lost": "AMOUNT of 1,000 attempts to connect are not answered", "part": "AMOUNT of 1,000 receives end early",
    "pieces": "AMOUNT of 1,000 messages come in pieces", "window": "a connection holds AMOUNT bytes",
    "eager": "a thread that may be interrupted is, AMOUNT times in 1,000",
    "latency": "messages take long: AMOUNT is the number of a range", "bandwidth": "links carry AMOUNT bytes a second",
    "skew": "a clock is AMOUNT millionths too fast", "day": "a clock jumps by AMOUNT seconds",
    "late": "processes come up to AMOUNT ms late", "leave": "loaders read a part of their samples only",
    "think": "loaders ask for nothing for up to AMOUNT ms, twice", "twice": "two steps of a job do the same at a time",
    "doubt": "loaders report checksum errors in AMOUNT of 1,000 right answers",
}  # fmt: skip
_DISK_AMOUNTS = {
    "full": (0, 2_000_000), "quota": (0, 2_000_000), "slow": (2, 2_000), "hang": (10, 60_000),
    "lag": (100, 60_000),
}  # fmt: skip
_OFF_DISK = {
    "source": {"full", "quota", "eio-write", "eio-sync", "lag"},
    "meet": {"full", "quota", "flip"},
    "disk": {"lag"},
}
STEADY = {
    "absent", "pids", "part", "reset", "refused", "lost", "pieces", "eager", "window", "latency", "bandwidth", "skew",
    "late", "leave", "think", "twice", "doubt",
}  # fmt: skip


def kinds() -> list[str]:
    """Returns the names of all faults."""
    on_disks = [f"{place}-{kind}" for place, off in _OFF_DISK.items() for kind in DISK_FAULTS if kind not in off]
    return [*_AMOUNTS, *on_disks, *(f"source-{kind}" for kind in SPOILT)]


def described() -> Iterator[str]:
    """Yields a line for each fault: its name, and what happens."""
    for kind in kinds():
        what = kind.partition("-")[2]
        about = _ABOUT.get(kind) or SPOILT.get(what) or DISK_FAULTS[what][1]
        yield f"{kind:16} {about}"


def chosen(text: str) -> list[str]:
    """Returns the kinds of faults that a text names: "all", "none", or names with commas; raises UsageError."""
    if text in ("all", "none"):
        return kinds() if text == "all" else []
    found = [name.strip() for name in text.split(",") if name.strip()]
    if unknown := [name for name in found if name not in kinds()]:
        raise UsageError(f"there are no faults {', '.join(unknown)}: choose all, none, or some of {', '.join(kinds())}")
    return found


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault.

    Attributes:
        at: the number of the event before which it begins, or how often its `moment` comes; 0 for the begin of the
            schedule.
        kind: of `kinds`.
        node: where.
        other: another node, for what lies between two.
        amount: how strong; what it means depends on the kind.
        lasts: ns until it is over; it ends when all is healed, too.
        moment: the call of a process just before, on whose node the fault happens; "" if it waits for an event.
    """

    at: int
    kind: str
    node: int
    other: int
    amount: int
    lasts: int
    moment: str = ""

    def __str__(self) -> str:
        between = f" to {self.other}" if self.kind in ("cut", "clog") else ""
        where = f"there{between}" if self.moment else f"at node {self.node}{between}"
        return f"{self.moment or 'event'} {self.at}: {self.kind} {where}, {self.amount}, {self.lasts / S:g} s"


def drawn(seed: int, size: Size, on: Collection[str]) -> list[Fault]:
    """Returns the faults of a schedule, by their times.

    Args:
        seed: of the schedule.
        size: of the cluster.
        on: the kinds that may be drawn.
    """
    found, together = [], Chance(seed, "together")
    pairs = [pair for pair in _TOGETHER if set(pair) <= set(on)]
    pair = together.pick(pairs) if pairs and together.happens(_PAIRS) else ()
    for kind in pair or _chosen_kinds(Chance(seed, "swarm"), on):
        chance = Chance(seed, f"fault {kind}")
        is_everywhere = bool(pair) and kind not in STEADY | _DIRECTED
        count = size.nodes if is_everywhere else 1 if kind in STEADY else chance.between(1, _MOST)
        for number in range(count):
            node = number if is_everywhere else chance.below(size.nodes)
            other = (node + 1 + chance.below(max(1, size.nodes - 1))) % size.nodes
            amount = _amount(kind, chance)
            moment = chance.pick(_DRAWN) if kind in _DIRECTED and chance.happens(0.7) else ""
            moment = FINISH if pair and kind == "power" else moment  # what was to be durable counts then
            begin = 0 if kind in STEADY else chance.delay(1, _MOMENTS.get(moment, _LATEST))
            begin = chance.between(1, _AT_WORK) if is_everywhere else begin
            is_long = kind == "stop" and chance.happens(0.3)
            lasts = chance.between(_SILENT, _LONGEST) if is_long else chance.delay(1 * MS, _LONGEST)
            lasts = _LONGEST if is_everywhere else lasts
            found.append(Fault(begin, kind, node, other, amount, lasts, moment))
    return sorted(found, key=lambda fault: (fault.moment, fault.at))


def _chosen_kinds(swarm: Chance, on: Collection[str]) -> list[str]:
    """Returns the kinds of a schedule: none, a few, after which little is excused, or many."""
    how_often = swarm.pick(_ON)
    if how_often:
        return [kind for kind in kinds() if swarm.happens(how_often) and kind in on]
    weighted = [kind for kind in kinds() if kind in on for _ in range(_OFTEN if kind in _DIRECTED else 1)]
    few = {swarm.pick(weighted) for _ in range(swarm.below(_MOST + 1)) if weighted}
    return [kind for kind in kinds() if kind in few]


def _amount(kind: str, chance: Chance) -> int:
    least, most = _AMOUNTS.get(kind) or _DISK_AMOUNTS.get(kind.partition("-")[2]) or (1, 5)
    return chance.between(least, most) if least < 1 else chance.delay(least, most)
