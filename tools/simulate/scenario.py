"""One schedule: a job on a cluster, its faults, and its end, which must come."""

from __future__ import annotations

import gc
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from dlio.dataset.shard import files_of
from dlio.stage.engine import pending, pieces, writing
from dlio.stage.engine.writing import MOST_BYTES
from dlio.stage.planning import flows, homes
from dlio.stage.planning.plan import Plan
from tools.simulate.chance import Chance
from tools.simulate.cluster import Actor, Cluster, Size
from tools.simulate.faults import Fault
from tools.simulate.injector import Injector
from tools.simulate.launching import TraceLog
from tools.simulate.listing import Listing, Lists
from tools.simulate.network import Weather
from tools.simulate.people import Introduction, Loading, Staging, give_back
from tools.simulate.replaced import replaced
from tools.simulate.scheduler import MS, LivelockError, S, Scheduler

_SLOWING = {"latency", "bandwidth", "late", "think", "twice"}  # what takes time without a fault
_VERSION = 9  # in the first line of a trace
_LOSING = ("power", "gone", "disk-eio-sync")  # with these, disks keep track of what is durable
_OF_PEOPLE = ("late", "leave", "think", "twice", "doubt")
_STEP = 1 * S
_LAST_FAULT = 60 * S  # then all is healed
_PIECES = (16 << 10, 16 << 10, 64 << 10, MOST_BYTES)
_DIVIDED = (64 << 10, homes.PIECE_BYTES)  # by the latter, which no file exceeds, none is divided
_THREADS = (2, 3, 4, flows.THREADS)
_PATIENCE = 150 * S  # after that every process must end: nodes that are silent, or never start, are waited for a minute
_MOST_EPOCHS = 3
_LISTED = (0, 0, 300_000)  # bytes; the latter exceed what a connection holds
_HAVE_LESS, _PERCENTS = 0.25, (0, 15, 40, 70, 100)  # of the data set, which a node has room for
_AGAIN = 100 * S  # all nodes have found each other again by then, so all is read from where it would be without a fault

#: Referenced until this process ends: greenlets that are freed run their `finally` blocks, in the next schedule.
_ENDED: list[Scheduler] = []


@dataclass(frozen=True, slots=True)
class Kind:
    """What a job does: `stage`, `load` or `list`; by which strategy; whether MPI introduces the nodes to each other."""

    verb: str
    strategy: str = ""
    is_introduced: bool = False

    def __str__(self) -> str:
        return f"{self.verb} {self.strategy}{' by MPI' * self.is_introduced}".rstrip()


KINDS = (
    Kind("stage", "broadcast"),
    Kind("stage", "broadcast", is_introduced=True),
    Kind("stage", "replicate"),
    Kind("load", "replicate"),
    Kind("load", "broadcast"),
    Kind("load", "partition"),
    Kind("list"),
)


@dataclass(slots=True)
class Outcome:
    """The result of a schedule.

    Attributes:
        seed: of it.
        kind: of the job.
        digest: of the trace.
        events: how many.
        ended: ns of virtual time.
        broken: which promise was broken; "" if none.
        happened: the faults that came, and how often.
        source: bytes read from the source, in parts of the data set.
        slowest: ns of the call of a loader that took longest.
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
    slowest: int = 0
    done: int = 0
    failures: list[str] = field(default_factory=list)
    trace: list[str] = field(default_factory=list)


def sized(seed: int, nodes: int, files: int) -> Size:
    """Returns a cluster of this many nodes, and a data set of this many files of drawn sizes."""
    chance = Chance(seed, "size")
    sizes = [chance.pick((1, 4_096, 20_000, 65_537, 100_000, 160_000)) for _ in range(files)]
    return Size(nodes, tuple(sizes), 1 + chance.happens(0.3))


def kind_of(seed: int) -> Kind:
    """Returns what the job of a schedule does."""
    return Chance(seed, "kind").pick(KINDS)


def small(seed: int, nodes: int | None = None, files: int | None = None) -> Size:
    """Returns a cluster of 2 to 5 nodes, and a data set of 1 to 8 files, where no number is given.

    Most mistakes need no more.
    """
    chance = Chance(seed, "small")
    drawn = chance.between(2, 5), chance.between(1, 8)
    return sized(seed, nodes or drawn[0], files or drawn[1])


def run(
    seed: int, size: Size, faults: Sequence[Fault], base: Path, *, keep: bool = False, until: int | None = None
) -> Outcome:
    """Runs a schedule in this process, of which nothing but other schedules should be asked later.

    Args:
        seed: decides everything.
        size: of the cluster.
        faults: to inject.
        base: an empty folder.
        keep: keep the trace.
        until: the event after which it stops.
    """
    gc.disable()
    scheduler = Scheduler(seed, keep=keep)
    _ENDED.append(scheduler)
    kind = kind_of(seed)
    keeps_track = any(fault.kind in _LOSING for fault in faults)
    cluster = Cluster(scheduler, base, size, Weather(), keeps_track=keeps_track)
    injector, outcome = Injector(cluster), Outcome(seed, str(kind))
    handler = TraceLog(cluster.world, base)
    catch_logs(handler)
    actors = _actors(cluster, kind, faults)
    scheduler.note("version", _VERSION, kind.verb, kind.strategy, kind.is_introduced, size)
    with cluster.in_place(), pieces_of(Chance(seed, "pieces").pick(_PIECES)), threads_of(seed), divided_of(seed):
        injector.plan(faults)
        for actor in actors:
            actor.begin()
        if until is not None:
            scheduler.call_at_event(until, scheduler.halt)
        try:
            if _carried_out(cluster, kind, injector, actors, until) and until is None:
                _check(cluster, kind, actors, faults)
            outcome.broken = next(map(str, cluster.oracle.violations), "")
        except LivelockError as error:
            outcome.broken = str(error)
    outcome.digest, outcome.events, outcome.ended = scheduler.digest(), scheduler.events, scheduler.now
    outcome.happened, outcome.trace = injector.happened, scheduler.trace or []
    outcome.source = cluster.source.bytes_read / max(1, sum(size.files))
    outcome.slowest = cluster.oracle.slowest
    outcome.done = max(actor.done_at for actor in actors)
    outcome.failures = [f"{actor}: {text}" for actor in actors for text in actor.failures]
    return outcome


@contextmanager
def pieces_of(num_bytes: int) -> Iterator[None]:
    """Makes the engine fetch pieces of this many bytes at first and at most: small files come in several, too."""
    least, first = partial(pieces.PieceSize, num_bytes), pieces.PieceSize
    smaller = (lambda *_: least()) if num_bytes < MOST_BYTES else first
    with replaced(pending, PieceSize=smaller, MOST_BYTES=num_bytes), replaced(pieces, MOST_BYTES=num_bytes):
        yield


@contextmanager
def threads_of(seed: int) -> Iterator[None]:
    """Has the engine fetch by a drawn number of threads: with a few, one that waits holds up the others."""
    with replaced(flows, THREADS=Chance(seed, "threads").pick(_THREADS)):
        yield


@contextmanager
def divided_of(seed: int) -> Iterator[None]:
    """Has the nodes divide the larger files in some schedules."""
    with divided_by(Chance(seed, "divided").pick(_DIVIDED)):
        yield


@contextmanager
def divided_by(num_bytes: int) -> Iterator[None]:
    """Has the nodes divide files into pieces of this many bytes; such files are not written at once."""
    once = min(num_bytes, writing.ONCE_BYTES)
    with replaced(homes, PIECE_BYTES=num_bytes), replaced(writing, ONCE_BYTES=once):
        yield


def catch_logs(handler: logging.Handler) -> None:
    """Collects all log records in one place."""
    root: Any = logging.getLogger()
    root.handlers[:] = [handler]


def _actors(cluster: Cluster, kind: Kind, faults: Sequence[Fault]) -> list[Actor]:
    """Returns the processes of the job."""
    given = {fault.kind: fault.amount for fault in faults if fault.kind in _OF_PEOPLE}
    introduction = Introduction(cluster.scheduler) if kind.is_introduced else None
    lists, rooms = Lists(cluster.oracle, Chance(cluster.scheduler.seed, "lists").pick(_LISTED)), _rooms(cluster, kind)
    found, chance = [], Chance(cluster.scheduler.seed, "people")
    epochs, late = chance.between(1, _MOST_EPOCHS), given.get("late", 1)
    again_at = _AGAIN if kind.strategy == "partition" and faults and chance.happens(0.5) else 0
    longest = 2 * given.get("think", 0) // (epochs * len(cluster.size.files))
    for node in range(cluster.size.nodes):
        for local in range(cluster.size.locals):
            if kind.verb == "stage":
                work: Any = Staging(kind.strategy, introduction)
            elif kind.verb == "list":
                work = Listing(lists, partial(_think, chance, given.get("think", 0)))
            else:
                share = chance.fraction() if "leave" in given else 1.0
                think, doubt = partial(_think, chance, longest), given.get("doubt", 0) / 1000
                work = Loading(kind.strategy, share, think, epochs, again_at, doubt, rooms[node])
            came = chance.below(late + 1) // _step(late) * _step(late) * MS
            steps = 2 if "twice" in given and not introduction else 1
            found += [Actor(cluster, node, local, kind.verb, work, came, step) for step in range(steps)]
    return found


def _rooms(cluster: Cluster, kind: Kind) -> list[int]:
    """Returns the bytes that each node may keep: in some schedules less than all, and not the same."""
    chance, whole = Chance(cluster.scheduler.seed, "rooms"), sum(cluster.size.files)
    have_less = kind.verb == "load" and kind.strategy != "partition" and chance.happens(_HAVE_LESS)
    return [whole * (chance.pick(_PERCENTS) if have_less else 100) // 100 for _ in range(cluster.size.nodes)]


def _have_less(cluster: Cluster, kind: Kind) -> bool:
    return min(_rooms(cluster, kind)) < sum(cluster.size.files)


def _step(late: int) -> int:
    """Returns the ms between two starts, so that some start at the very end of others' patience."""
    return 500 if late > 1000 else 1


def _think(chance: Chance, longest: int) -> float:
    return chance.below(longest + 1) / 1000


def _carried_out(cluster: Cluster, kind: Kind, injector: Injector, actors: Sequence[Actor], until: int | None) -> bool:
    """Runs it to the end, or to an event, or until a promise is broken; returns whether all is done and none is."""
    scheduler, oracle, healed, given_back = cluster.scheduler, cluster.oracle, False, 0
    last = 0  # ns: of the last fault, or until loaders ask again
    while scheduler.run(scheduler.now + _STEP):
        last = max(oracle.causes.latest, oracle.thought)
        if scheduler.failed or oracle.violations or scheduler.now > last + _PATIENCE:
            break
        if until is not None and scheduler.events >= until:
            return False
        if not healed and scheduler.now >= _LAST_FAULT:
            healed = True
            injector.heal()
        if all(actor.is_over for actor in actors):
            if not cluster.living():
                break
            if kind.strategy == "partition" or _have_less(cluster, kind):  # its agents serve until the job gives back
                given_back = given_back or scheduler.now
                oracle.check_given_back(given_back)
                for node in {process.node: None for process in cluster.living()}:
                    give_back(cluster, node)
    oracle.check_crashes()
    if not oracle.violations:
        late = [f"{actor}, life {actor.lives}" for actor in actors if not actor.is_over]
        oracle.end(late or cluster.living(), last)
    return not oracle.violations


def _check(cluster: Cluster, kind: Kind, actors: Sequence[Actor], faults: Sequence[Fault]) -> None:
    """Checks what must hold in the end."""
    oracle = cluster.oracle
    for disk in cluster.disks:
        oracle.check_copies(disk)
    loadings = [actor.work for actor in actors if actor.is_done and isinstance(actor.work, Loading)]
    if len(loadings) == len(actors) and all(loading.share == 1.0 for loading in loadings):
        oracle.took(cluster.orders.lacking(range(loadings[0].epochs)))
    reads_again = any(isinstance(actor.work, Loading) and actor.work.again_at for actor in actors)
    if not (reads_again or _SLOWING & {fault.kind for fault in faults}):
        oracle.check_pace(max(actor.done_at for actor in actors))
        for listing in [actor.work for actor in actors if isinstance(actor.work, Listing)]:
            listing.lists.check_once()
    if kind.verb == "list":
        return
    names = [file.name for file in files_of(cluster.data.manifest.shards)]
    distrusted = {(process, names[number]) for process, number in cluster.watching.distrusted}
    if kind.strategy == "partition":
        placed = homes.assign_first(cluster.size.files, cluster.size.nodes)
        home_of = dict(zip(names, placed, strict=True))
        oracle.check_reads(lambda name, _: home_of[name], kept=home_of.keys(), distrusted=distrusted)
        return
    is_shared, rooms = kind != Kind("stage", "replicate"), tuple(_rooms(cluster, kind))
    plans = [Plan(cluster.data.manifest, node, len(rooms), room, rooms) for node, room in enumerate(rooms)]
    first = (lambda name, begin: plans[0].home(names.index(name), begin=begin)) if is_shared else (lambda *_: None)
    if _have_less(cluster, kind):  # what nobody keeps is read whenever somebody reads it
        kept = {names[each] for plan in plans for each in plan.kept}
        oracle.check_reads(first, kept=kept, distrusted=distrusted)
        return
    oracle.check_reads(first, is_shared=is_shared, distrusted=distrusted)
    if is_shared:
        cluster.watching.check_shares([_owned(cluster, plan) for plan in plans])


def _owned(cluster: Cluster, plan: Plan) -> int:
    """Returns the bytes that a node reads from the source if no node is lost."""
    spans = (plan.share(number, [(0, size)], is_own=True) for number, size in enumerate(cluster.size.files) if size)
    return sum(end - begin for some in spans for begin, end in some)
