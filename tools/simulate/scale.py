"""Staging at scale: python -m tools.simulate.scale --nodes 100 --shards 100 --size 256MB

The real engine stages a data set by broadcast on many nodes, without faults or with some, and counts the load of the
source, the links, the disks and the meeting folder. A shard is one span. Its bytes, and all rates, are a
hundred thousandth of what they stand for, and what else is read and sent takes no bandwidth: so the times are those of
the whole. A span comes as a whole, so it has to take less time than a node has patience (10 s). All disks together keep
a finished shard once, and a node keeps fewer connections of others that are idle: so memory holds a thousand nodes.

Shards that are large for the nodes are divided (--shards 1 --size 50GB), here into pieces of 64 MiB or more, eight for
each node; smaller ones if a node needs more than a second to send one to all others. A byte stands for the part of one
that makes a piece a block of 16 KiB, which no piece is less than. So may other shards be (--spans 4): where the source
is about as fast as the disk of a node, nodes wait for whole ones.
"""

from __future__ import annotations

import argparse
import gc
import os
import resource
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from dlio.cli.options import above_0, count
from dlio.errors import EXIT_DONE, EXIT_INTERRUPTED, DlioError, UsageError
from dlio.stage.copies import live_folder
from dlio.stage.copies.base_folder import CONTROL
from dlio.stage.copies.blocks import BLOCK_BYTES
from dlio.stage.engine import running_digest, store
from dlio.stage.engine.writing import MOST_BYTES
from dlio.stage.planning import homes
from dlio.stage.planning.cost import Machine
from dlio.stage.protocol import serving
from tools.simulate.chance import Chance
from tools.simulate.cluster import MEET, SOURCE, Actor, Cluster, Size
from tools.simulate.disk import Speed
from tools.simulate.launching import TraceLog
from tools.simulate.network import Weather
from tools.simulate.people import Staging
from tools.simulate.replaced import replaced
from tools.simulate.scenario import catch_logs, divided_by, pieces_of
from tools.simulate.scheduler import MS, S, Scheduler
from tools.simulate.storage import NAME, Call

_PART = 100_000  # bytes that a simulated one stands for if no shard is divided
_PIECE_BYTES, _PIECES = 64 << 20, 8  # of a divided shard at least, and of those of all shards for each node
_TO_ALL_SECONDS = 1.0  # in which a node sends a piece to all others, a fourth of what they are patient
_STEP = 1 * S
_OFTEN = 100 * MS  # the opened files are counted
_TOGETHER = 100  # ms, in which all processes start
_PATIENCE = 4 * 3600 * S
_CONNECTIONS = 100_000  # that nodes have to those that read: each has a thread, and most of them are idle
_MOST_FILES = Path("/proc/sys/fs/nr_open")  # that root may let a process open


@dataclass(frozen=True, slots=True)
class Job:
    """What is staged, and on what.

    Attributes:
        nodes, shards, shard_bytes: how many, and the bytes of each shard.
        machine: its rates; `slow_share` and `slow_factor` are stragglers', `failures` are of a node in an hour.
        seed: chooses stragglers and the nodes that fail.
        spans: in which a shard is fetched that is not divided.
    """

    nodes: int
    shards: int
    shard_bytes: int
    machine: Machine
    seed: int = 1
    spans: int = 1

    @property
    def num_bytes(self) -> int:
        """Of the data set."""
        return self.shards * self.shard_bytes

    @property
    def blocks(self) -> int:
        """The blocks of a shard that nodes fetch one by one; 0 if they fetch it as a whole."""
        if homes.divided([self.shard_bytes] * self.shards, self.nodes):
            least = min(_PIECE_BYTES, self.machine.network / self.nodes * _TO_ALL_SECONDS)
            return max(2, round(self.shard_bytes / max(least, self.num_bytes // (_PIECES * self.nodes))))
        return self.spans if self.spans > 1 else 0

    @property
    def homes(self) -> int:
        """The nodes that read from the source, to which all others connect."""
        return min(self.nodes, self.shards * max(1, self.blocks))

    @property
    def span(self) -> int:
        """The simulated bytes that a node fetches at a time."""
        return BLOCK_BYTES if self.blocks else max(1, self.shard_bytes // _PART)

    @property
    def part(self) -> float:
        """The bytes that a simulated one stands for."""
        return self.shard_bytes / (self.span * max(1, self.blocks))

    @property
    def bound(self) -> float:
        """The least possible seconds: of the source once, and of what a node receives and writes."""
        machine, others = self.machine, self.num_bytes * (self.nodes - 1) / self.nodes
        return max(self.num_bytes / machine.source, others / machine.network, self.num_bytes / machine.local)


@dataclass(frozen=True, slots=True)
class Found:
    """The result of a job.

    Attributes:
        source: bytes read from the source, in parts of the set.
        first: seconds until the slowest node has its first shard.
        seconds: until the last node has its whole copy.
        half: until half of the nodes have theirs.
        most_served: what the node that sends most has sent, over the mean.
        opens: files opened in the meeting folder by a node, in all.
        opens_later: by a node in a minute of the last third of the time, when each has needed each other before.
        failures: nodes that were killed.
        events: of the simulation.
    """

    source: float
    first: float
    seconds: float
    half: float
    most_served: float
    opens: float
    opens_later: float
    failures: int
    events: int


class _Watch:
    """When each node has its first shard and its last, and when files were opened to meet.

    A shard that has its final name becomes another name of the first one that had, whose bytes are the same.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._scheduler, self._meet = cluster.scheduler, cluster.storage.disks[MEET]
        self._shards: dict[str, Path] = {}
        self._opens = [(0, 0)]
        self.first: dict[str, int] = {}
        self.last: dict[str, int] = {}
        cluster.storage.listeners.append(self._called)

    def _called(self, call: Call) -> None:
        if self._scheduler.now >= self._opens[-1][0] + _OFTEN:
            self._opens.append((self._scheduler.now, self._meet.opens))
        if call.kind == NAME and call.name.endswith(".bin") and CONTROL not in call.path:
            named = call.disk.root / call.path
            if (first := self._shards.setdefault(call.name, named)) != named:
                named.unlink()
                named.hardlink_to(first)
            self.first.setdefault(call.disk.name, self._scheduler.now)
            self.last[call.disk.name] = self._scheduler.now

    def opens_between(self, begin: int, end: int) -> int:
        """Returns how many files were opened to meet between two times, in ns, about."""
        before, until = (max(opens for at, opens in self._opens if at <= time) for time in (begin, end))
        return until - before


def simulated(job: Job, base: Path) -> Found:
    """Returns what happens; raises DlioError if a node does not end, UsageError for a source that is too slow.

    Args:
        job: what is staged.
        base: an empty folder.
    """
    scheduler, machine, part, span = Scheduler(job.seed), job.machine, job.part, job.span
    if machine.source < part:
        raise UsageError(f"a source of {machine.source:,} bytes/s gives no simulated byte: give {part:,.0f} or more")
    gc.disable()
    size = Size(job.nodes, (span * max(1, job.blocks),) * job.shards)
    weather = Weather(bandwidth=int(machine.network / part))
    cluster = Cluster(scheduler, base, size, weather)
    catch_logs(TraceLog(cluster.world, base))
    slow = [Chance(job.seed, f"slow {node}").happens(machine.slow_share) for node in range(job.nodes)]
    for node, is_slow in enumerate(slow):
        factor = machine.slow_factor if is_slow else 1.0
        cluster.disks[node].speed = Speed(int(4 * machine.local * factor / part), int(machine.local * factor / part))
    cluster.network.flows.least = span
    for disk in cluster.storage.disks.values():
        disk.counted = span
    cluster.storage.disks[SOURCE].speed = Speed(int(machine.source / part))
    watch = _Watch(cluster)
    actors = [Actor(cluster, node, 0, "stage", Staging("broadcast")) for node in range(job.nodes)]
    few = replaced(serving, MAX_CONNECTIONS=min(serving.MAX_CONNECTIONS, _CONNECTIONS // job.homes))
    with cluster.in_place(), pieces_of(span), divided_by(span), gaps_of(span), few:
        for actor in actors:
            actor.came = Chance(job.seed, f"came {actor}").below(_TOGETHER) * MS
            actor.begin()
        failures = _carried_out(cluster, actors, job)
    ended = max(watch.last.values())
    met = ended * 2 // 3
    sent = [cluster.network.flows.sent[node] for node in range(job.nodes)]
    return Found(
        cluster.source.bytes_read / sum(size.files),
        max(watch.first.values()) / S,
        ended / S,
        sorted(watch.last.values())[(job.nodes - 1) // 2] / S,
        max(sent) / (sum(sent) / len(sent)) if any(sent) else 0.0,
        cluster.storage.disks[MEET].opens / job.nodes,
        watch.opens_between(met, ended) / job.nodes * 60 / ((ended - met) / S),
        failures,
        scheduler.events,
    )


@contextmanager
def gaps_of(span: int) -> Iterator[None]:
    """Has nodes read again for a digest in parts of a span, as many at a time as they do, and fetch no more at once."""
    most = running_digest._MOST_GAP // MOST_BYTES * span
    with (
        replaced(running_digest, _MOST_GAP=most, _READ_BYTES=span),
        replaced(store, SMALL_BYTES=span),
        replaced(live_folder, SMALL_BYTES=span),
    ):
        yield


def _carried_out(cluster: Cluster, actors: Sequence[Actor], job: Job) -> int:
    """Runs it to the end; returns how many nodes have failed."""
    scheduler, chance, failures = cluster.scheduler, Chance(job.seed, "failures"), 0
    rate = job.machine.failures * job.nodes / 3600
    while scheduler.run(scheduler.now + _STEP) and not all(actor.is_done for actor in actors):
        if any(isinstance(task.error, KeyboardInterrupt) for task in scheduler.failed):
            raise KeyboardInterrupt
        if scheduler.failed or cluster.oracle.violations:
            problems = [*map(str, cluster.oracle.violations), *(repr(task.error) for task in scheduler.failed)]
            raise DlioError(f"the simulation failed after {scheduler.now / S:.1f} s: {', '.join(problems)}")
        if chance.happens(rate * _STEP / S) and (living := cluster.living()):
            failures += 1
            chance.pick(living).kill()
        if scheduler.now > _PATIENCE:
            left = sum(not actor.is_done for actor in actors)
            raise DlioError(f"{left} of {job.nodes} nodes have not ended after {_PATIENCE / S:,.0f} simulated seconds")
    return failures


def _raise_limit() -> None:
    """Allows this process the open files of all simulated ones; root alone can raise the hard limit."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    for most in (int(_MOST_FILES.read_text()), hard):
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, max(most, hard)))
            return


def _up_to(most: float) -> Callable[[str], float]:
    """Returns an option's type: a number from 0 to this one."""

    def number(text: str) -> float:
        with suppress(ValueError):
            if 0 <= (found := float(text)) <= most:
                return found
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 to {most:g}")

    return number


def main() -> int:
    """Runs a job, and prints its result."""
    parser = argparse.ArgumentParser(prog="python -m tools.simulate.scale", description=__doc__)
    parser.add_argument("--nodes", type=count, default=100)
    parser.add_argument("--shards", type=count, default=100)
    parser.add_argument("--size", type=above_0, default=256_000_000, help="of a shard")
    parser.add_argument("--source", type=above_0, default=100_000_000_000, help="bytes a second of the file system")
    parser.add_argument("--slow", type=_up_to(1), default=0.0, help="the share of nodes at half the rates")
    parser.add_argument("--lost", type=_up_to(1e9), default=0.0, help="nodes lost in an hour, of all")
    parser.add_argument("--spans", type=count, default=1, help="in which a shard is fetched that is not divided")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    machine = Machine(
        num_nodes=given.nodes, free_bytes=1 << 50, source=given.source, client=25e9, network=25e9, local=2e9,
        slow_share=given.slow, slow_factor=0.5, failures=given.lost / given.nodes,
    )  # fmt: skip
    _raise_limit()
    job = Job(given.nodes, given.shards, given.size, machine, given.seed, given.spans)
    code = EXIT_DONE
    try:
        _run(job)
    except DlioError as error:
        code = error.exit_code
        print(error.text, file=sys.stderr, flush=True)
    except KeyboardInterrupt:
        code = EXIT_INTERRUPTED
        print("interrupted", file=sys.stderr, flush=True)
    os._exit(code)  # no `finally` of a simulated process runs


def _run(job: Job) -> None:
    """Runs a job, and prints its result; raises as `simulated`."""
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="dlio-scale-") as base:
        found = simulated(job, Path(base))
        print(
            f"{job.nodes:,} nodes, {job.shards:,} shards of {job.shard_bytes:,} bytes, the bound is {job.bound:.1f} s\n"
            f"  read from the source:                 {found.source:.3f} of the set\n"
            f"  first shard of the slowest node:      {found.first:.2f} s\n"
            f"  whole copy of the last node:          {found.seconds:.1f} s, {found.seconds / job.bound:.3f} of it\n"
            f"  of half of the nodes:                 {found.half:.1f} s\n"
            f"  sent by the node that sends most:     {found.most_served:.2f} of the mean\n"
            f"  files opened to meet, a node:         {found.opens:.1f}\n"
            f"  once all have met, a node and minute: {found.opens_later:.1f}\n"
            f"  nodes lost:                           {found.failures}\n"
            f"  events:                               {found.events:,}"
        )
        usage = resource.getrusage(resource.RUSAGE_SELF)
        print(f"took {usage.ru_utime + usage.ru_stime:.0f} s of a processor and {usage.ru_maxrss >> 10:,} MiB")
        sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
