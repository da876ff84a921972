"""What goes wrong in a schedule: a list that a seed draws once, so that it can be written down, replayed and shrunk."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from dlio.errors import UsageError
from tools.simulate import disk, source
from tools.simulate.chance import Chance
from tools.simulate.scheduler import MS, S

VERSION = 1  #: of what a seed means: to be raised with each change of what is drawn, and in which order
SOURCE = -1  #: in the place of a node

#: What can go wrong, and what `amount` is. Those of a disk and of the source have their own tables.
KINDS = {
    "kill": "the agent's process is killed, and started again by the next loader; 1: with the same process id",
    "pause": "the agent's process is stopped for a while",
    "power": "the node loses power: all its processes end, and its disk keeps what is durable",
    "clock": "the time of day jumps by AMOUNT ms",
    "cut": "nothing gets from the node to node AMOUNT",
    "isolate": "nothing gets from the node to others, nor from them to it",
    "lag": "what the node sends takes AMOUNT ms longer",
    "reset": "connections are broken off, one in AMOUNT calls",
    "refuse": "one in AMOUNT attempts to connect is refused",
    "lose": "one in AMOUNT attempts to connect gets no answer at first",
    "late": "the node's loaders come AMOUNT ms late",
    "leave": "the node's loaders leave in the middle",
    **{f"disk-{name}": text for name, (_, text) in disk.FAULTS.items()},
    **{f"source-{name}": text for name, text in source.SOURCE_FAULTS.items()},
}
_LASTING = ("pause", "power", "cut", "isolate", "lag", "reset", "refuse", "lose", "disk-", "source-")
_AMOUNTS: dict[str, tuple[int, int]] = {
    "kill": (0, 1),
    "clock": (-5_000, 5_000),
    "lag": (1, 3_000),
    "reset": (5, 200),
    "refuse": (2, 10),
    "lose": (2, 10),
    "late": (10, 20_000),
    "disk-full": (0, 1 << 20),
    "disk-quota": (0, 1 << 20),
    "disk-slow": (2, 200),
    "disk-hang": (10, 20_000),
    "source-slow": (2, 200),
    "source-hang": (10, 40_000),
}
_FEW = (1, 4)
_LONGEST = 30 * S
_SHARE = 0.15  # of the kinds, in one schedule


@dataclass(frozen=True, slots=True, order=True)
class Fault:
    """One thing that goes wrong.

    Attributes:
        at: ns since the schedule began.
        kind: one of KINDS.
        node: where; SOURCE for the source.
        amount: see KINDS.
        lasts: ns until it is mended; 0 for what is over at once.
    """

    at: int
    kind: str
    node: int
    amount: int = 0
    lasts: int = 0

    def __str__(self) -> str:
        where = "the source" if self.node == SOURCE else f"node {self.node}"
        until = f", until {(self.at + self.lasts) / S:.3f} s" if self.lasts else ""
        return f"{self.at / S:.3f} s {self.kind} {self.amount} at {where}{until}"


@dataclass(frozen=True, slots=True)
class Schedule:
    """All that decides a run.

    Attributes:
        seed: of chance.
        nodes: so many.
        files: of the data set.
        faults: in the order of time.
    """

    seed: int
    nodes: int = 5
    files: int = 8
    faults: tuple[Fault, ...] = field(default=())

    def to_json(self) -> str:
        """Returns it as text, to be replayed."""
        head = {"version": VERSION, "seed": self.seed, "nodes": self.nodes, "files": self.files}
        return json.dumps(head | {"faults": [asdict(fault) for fault in self.faults]}, indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Schedule:
        """Returns what `to_json` wrote.

        Raises:
            UsageError: it is something else, or was written by a simulator in which seeds mean something else.
        """
        try:
            record: dict[str, Any] = json.loads(text)
            _check_version(record["version"])
            found = tuple(Fault(**each) for each in record["faults"])
            check_kinds({fault.kind for fault in found})
            return cls(int(record["seed"]), int(record["nodes"]), int(record["files"]), tuple(sorted(found)))
        except UsageError:
            raise
        except (ValueError, KeyError, TypeError) as error:
            raise UsageError(f"this is not a recorded schedule: {error}: record one by --record FILE") from error


def seed_of(text: str) -> int:
    """Returns the seed of `SEED` or `SEED@VERSION`; raises UsageError, also for another version than this one's."""
    seed, _, version = text.partition("@")
    try:
        found, of = int(seed), int(version or VERSION)
    except ValueError:
        raise UsageError(f"{text!r} is not a seed: expected an integer, such as 7 or 7@{VERSION}") from None
    _check_version(of)
    return found


def _check_version(version: object) -> None:
    if version != VERSION:
        raise UsageError(
            f"this seed is of version {version} of the simulator, and this is version {VERSION}, in which it means "
            "another schedule: check out the commit that printed it"
        )


def kinds_of(text: str) -> tuple[str, ...]:
    """Returns the kinds of `all`, `none`, or names with commas between, in which `disk-` stands for all of these.

    Raises:
        UsageError: a name is unknown.
    """
    if text in ("all", "none"):
        return tuple(KINDS) if text == "all" else ()
    names = [name.strip() for name in text.split(",")]
    found = [kind for name in names for kind in KINDS if kind == name or (name.endswith("-") and kind.startswith(name))]
    check_kinds(name for name in names if not name.endswith("-") or not any(kind.startswith(name) for kind in KINDS))
    return tuple(dict.fromkeys(found))


def check_kinds(kinds: Iterable[str]) -> None:
    """Raises UsageError for an unknown kind of fault."""
    if unknown := [kind for kind in kinds if kind not in KINDS]:
        raise UsageError(f"{unknown[0]!r} is not a fault: expected all, none, or some of {', '.join(KINDS)}")


def drawn(seed: int, num_nodes: int, kinds: Collection[str], span: int) -> tuple[Fault, ...]:
    """Returns the faults of a schedule: a few of a few kinds, since all at once would hide each other.

    Args:
        seed: of the schedule.
        num_nodes: of it.
        kinds: that may come.
        span: ns in which they begin.
    """
    found: list[Fault] = []
    for kind in kinds:
        chance = Chance(seed, f"fault {kind}")
        if chance.happens(_SHARE):
            found += [_drawn(kind, chance, num_nodes, span) for _ in range(chance.between(1, 3))]
    return tuple(sorted(found))


def _drawn(kind: str, chance: Chance, num_nodes: int, span: int) -> Fault:
    node = SOURCE if kind.startswith("source-") else chance.below(num_nodes)
    amount = chance.between(*_AMOUNTS.get(kind, _FEW))
    if kind == "cut":
        amount = (node + 1 + chance.below(max(1, num_nodes - 1))) % num_nodes
    lasts = chance.delay(MS, _LONGEST) if kind.startswith(_LASTING) else 0
    return Fault(chance.delay(0, span), kind, node, amount, lasts)


def shrunk(schedule: Schedule, fails: Callable[[Schedule], bool]) -> Schedule:
    """Returns a smaller schedule that fails still: without faults that do not matter, and with fewer nodes and files.

    Args:
        schedule: that fails.
        fails: runs a schedule, and returns whether the same promise is broken.
    """
    schedule = replace(schedule, faults=_minimal(schedule, fails))
    for field_name, least in (("nodes", 1 + max([0, *(fault.node for fault in schedule.faults)])), ("files", 1)):
        while (value := getattr(schedule, field_name)) > least:
            smaller = [each for each in (least, (least + value) // 2, value - 1) if each < value]
            tried = next((each for each in smaller if fails(replace(schedule, **{field_name: each}))), None)
            if tried is None:
                break
            schedule = replace(schedule, **{field_name: tried})
    return replace(schedule, faults=_minimal(schedule, fails))


def _minimal(schedule: Schedule, fails: Callable[[Schedule], bool]) -> tuple[Fault, ...]:
    """Returns faults none of which can be left out: ddmin (Zeller and Hildebrandt, 2002), by complements."""
    faults: Sequence[Fault] = schedule.faults
    if faults and fails(replace(schedule, faults=())):
        return ()
    parts = 2
    while len(faults) > 1:
        size = -(-len(faults) // parts)
        for start in range(0, len(faults), size):
            left = (*faults[:start], *faults[start + size :])
            if left and fails(replace(schedule, faults=left)):
                faults, parts = left, max(2, parts - 1)
                break
        else:
            if size == 1:
                break
            parts = min(len(faults), 2 * parts)
    return tuple(faults)
