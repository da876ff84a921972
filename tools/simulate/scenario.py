"""One schedule: a job on a cluster, what goes wrong, and then the end of it all, which has to come."""

from __future__ import annotations

import gc
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

from dlio.stage.engine import pending
from tools.simulate.chance import Chance
from tools.simulate.cluster import Actor, Cluster, Size
from tools.simulate.faults import Fault, Injector
from tools.simulate.launching import TraceLog
from tools.simulate.network import Weather
from tools.simulate.people import MOST_READS, Introduction, Loading, Staging
from tools.simulate.scheduler import MS, LivelockError, S, Scheduler

VERSION = 3  #: of what seeds mean
_STEP = 1 * S
_LAST_FAULT = 60 * S  # then all is healed
_PIECES = (16 << 10, 64 << 10, pending.MOST_BYTES, pending.MOST_BYTES)
_PATIENCE = 600 * S  # after that everybody has to end
_SPOILING = ("power", "-flip", "-sync", "source-changed")  # what only checksums notice


@dataclass(frozen=True, slots=True)
class Kind:
    """What a job does: `stage` or `load`, by which strategy, and whether MPI introduces the nodes to each other."""

    verb: str
    strategy: str
    is_introduced: bool = False


KINDS = (
    Kind("stage", "broadcast"),
    Kind("stage", "broadcast", is_introduced=True),
    Kind("stage", "replicate"),
    Kind("load", "replicate"),
    Kind("load", "broadcast"),
    Kind("load", "partition"),
)


@dataclass(slots=True)
class Outcome:
    """What came of a schedule.

    Attributes:
        seed: of it.
        kind: of the job.
        digest: of the trace.
        events: how many.
        ended: ns of virtual time.
        broken: which promise was broken; "" if none.
        happened: the faults that came, and how often.
        source: bytes read from the source, in parts of the data set.
        failures: what processes failed with.
        trace: the lines, if they were kept.
    """

    seed: int
    kind: str = ""
    digest: str = ""
    events: int = 0
    ended: int = 0
    broken: str = ""
    happened: dict[str, int] = field(default_factory=dict)
    source: float = 0.0
    failures: list[str] = field(default_factory=list)
    trace: list[str] = field(default_factory=list)


def sized(seed: int, nodes: int, files: int) -> Size:
    """Returns a cluster of so many nodes, and a data set of so many files of drawn sizes."""
    chance = Chance(seed, "size")
    sizes = [chance.pick((1, 4_096, 20_000, 65_537, 100_000, 300_000)) for _ in range(files)]
    return Size(nodes, tuple(sizes), 1 + chance.below(2))


def run(
    seed: int, size: Size, faults: Sequence[Fault], base: Path, *, keep: bool = False, until: int | None = None
) -> Outcome:
    """Runs a schedule in this process, of which nothing else should be asked later.

    Args:
        seed: decides everything.
        size: of the cluster.
        faults: that come.
        base: an empty folder.
        keep: keep the trace.
        until: the event after which it stops.
    """
    gc.disable()
    scheduler = Scheduler(seed, keep=keep)
    kind = Chance(seed, "kind").pick(KINDS)
    has_power = any(fault.kind == "power" for fault in faults)
    cluster = Cluster(scheduler, base, size, Weather(), keeps_track=has_power)
    injector, outcome = Injector(cluster), Outcome(seed, f"{kind.verb} {kind.strategy}{' by MPI' * kind.is_introduced}")
    handler = TraceLog(cluster.world, base)
    catch_logs(handler)
    cluster.oracle.may_be_wrong = any(fault.kind.endswith(_SPOILING) for fault in faults)
    cluster.oracle.may_lack_lease = any(fault.kind.startswith(("disk-", "power")) for fault in faults)
    actors = _actors(cluster, kind, faults)
    scheduler.note("version", VERSION, kind.verb, kind.strategy, kind.is_introduced, size)
    with cluster.in_place(), pieces_of(Chance(seed, "pieces").pick(_PIECES)):
        injector.plan(faults)
        for actor in actors:
            actor.begin()
        if until is not None:
            scheduler.call_at_event(until, scheduler.halt)
        try:
            outcome.broken = _carried_out(cluster, kind, injector, actors, until) or (
                _checked(cluster, kind, injector, actors) if until is None else ""
            )
        except LivelockError as error:
            outcome.broken = str(error)
    outcome.digest, outcome.events, outcome.ended = scheduler.digest(), scheduler.events, scheduler.now
    outcome.happened, outcome.trace = injector.happened, scheduler.trace or []
    outcome.source = cluster.source.bytes_read / max(1, sum(size.files))
    outcome.failures = [f"{actor}: {text}" for actor in actors for text in actor.failures]
    return outcome


@contextmanager
def pieces_of(num_bytes: int) -> Iterator[None]:
    """Has the engine fetch pieces of so many bytes at first and at most: small files come in several, too."""
    least, first = partial(pending.PieceSize, num_bytes), pending.PieceSize
    smaller = (lambda *_: least()) if num_bytes < pending.MOST_BYTES else first
    with mock.patch.object(pending, "PieceSize", smaller), mock.patch.object(pending, "MOST_BYTES", num_bytes):
        yield


def catch_logs(handler: logging.Handler) -> None:
    """Has all that is logged come to one place."""
    root: Any = logging.getLogger()
    root.handlers[:] = [handler]


def _actors(cluster: Cluster, kind: Kind, faults: Sequence[Fault]) -> list[Actor]:
    """Returns the processes of the job."""
    given = {fault.kind: fault.amount for fault in faults if fault.kind in ("late", "leave", "think")}
    introduction = Introduction() if kind.is_introduced else None
    found, chance = [], Chance(cluster.scheduler.seed, "people")
    for node in range(cluster.size.nodes):
        for local in range(cluster.size.locals):
            if kind.verb == "stage":
                work: Any = Staging(kind.strategy, introduction)
            else:
                share = chance.fraction() if "leave" in given else 1.0
                think = partial(_think, chance, given.get("think", 1))
                work = Loading(kind.strategy, share, think)
            came = chance.below(given.get("late", 1) + 1) * MS
            found.append(Actor(cluster, node, local, kind.verb, work, came))
    return found


def _think(chance: Chance, most: int) -> float:
    return chance.below(most) / 1000


def _carried_out(cluster: Cluster, kind: Kind, injector: Injector, actors: Sequence[Actor], until: int | None) -> str:
    """Runs it to the end; returns which promise was broken on the way."""
    scheduler, healed = cluster.scheduler, False
    while scheduler.run(scheduler.now + _STEP):
        if scheduler.failed or cluster.oracle.violations:
            break
        if until is not None and scheduler.events >= until:
            return ""
        if not healed and scheduler.now >= _LAST_FAULT:
            healed = True
            injector.heal()
        if all(actor.is_done for actor in actors):
            living = cluster.living()
            if kind.strategy == "partition":  # its agents serve until the job has ended, whose launcher ends them
                for process in living:
                    process.kill()
            if not living:
                break
        if scheduler.now > _LAST_FAULT + _PATIENCE:
            late = [f"{actor}, life {actor.lives}" for actor in actors if not actor.is_done]
            return f"not ended {_PATIENCE // S} s after the last fault: {late or list(map(str, cluster.living()))}"
    for violation in cluster.oracle.violations:
        return str(violation)
    for task in scheduler.failed:
        return f"{task} raised {type(task.error).__name__}: {task.error}"
    if waiting := [str(actor) for actor in actors if not actor.is_done]:
        return f"nobody will ever wake {waiting}"
    return ""


def _checked(cluster: Cluster, kind: Kind, injector: Injector, actors: Sequence[Actor]) -> str:
    """Returns which promise is broken in the end."""
    oracle = cluster.oracle
    happened = [name for name, count in injector.happened.items() for _ in range(count)]
    for disk in cluster.disks:
        oracle.check_copies(disk)
    for text in [text for actor in actors for text in actor.failures]:
        oracle.failed(text, happened)
    happened += ["again" for actor in actors for _ in range(1, actor.lives)]
    readers = cluster.size.nodes
    if kind.strategy == "partition":  # what the lost owner of a part kept is read for each reader, and not kept
        readers *= cluster.size.locals * MOST_READS
    oracle.check_reads(happened, readers, is_shared=kind != Kind("stage", "replicate"))
    return next(map(str, oracle.violations), "")
