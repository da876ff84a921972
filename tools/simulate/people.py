"""The processes of a job: they stage, or load samples while an agent stages, all by dlio's own code."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

import numpy as np

from dlio.cluster.launchers import job_name
from dlio.cluster.topology import Topology
from dlio.dataset.manifest import File
from dlio.dataset.shard import files_of
from dlio.errors import CorruptRecordError, LauncherError, StorageError
from dlio.io import arrivals, world
from dlio.io.random_access import RandomAccessFile
from dlio.loaders.sampling.order import first_uses
from dlio.loaders.sampling.rank import rank_from_env
from dlio.locking.owner import Owner
from dlio.stage.client.filling import LiveFilling, find_filling
from dlio.stage.client.start import ensure_agent
from dlio.stage.copies import lease
from dlio.stage.engine.complete import complete
from dlio.stage.meeting.folder import MeetingFolder, meeting_folder
from dlio.stage.meeting.meeting import Meeting
from dlio.stage.meeting.peer import Introduced, Peer
from dlio.stage.planning.job import NO_OPTIONS, Job
from dlio.stage.protocol.tcp import TOKEN_BYTES, TcpListener
from dlio.stage.sources import source_of
from dlio.stage.strategies import load
from tools.simulate.chance import Chance
from tools.simulate.cluster import Actor, Cluster
from tools.simulate.primitives import Waiting
from tools.simulate.scheduler import S, Scheduler

_MOST_READS = 3  # of one file, next to those of samples
_MOST_READ, _USUAL_READ = 100_000, 4_096
_ARRIVAL = 30 * S  # then the launcher ends all processes


class Introduction:
    """Tells each node's first process the addresses of all, once, as MPI does, as soon as all processes have come.

    A process that is started again gets none.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self._peers: dict[int, Peer] = {}
        self._come: set[Actor] = set()
        self._scheduler, self._waiting = scheduler, Waiting(scheduler)

    def place(self, actor: Actor, content: str) -> Introduced | None:
        """Returns where a node meets the others; raises LauncherError if some processes do not come."""
        if actor.lives > 1:
            return None
        size, deadline = actor.cluster.size, self._scheduler.now + _ARRIVAL
        listener = TcpListener(world.address(), bytes(TOKEN_BYTES), content)
        if not actor.local:
            self._peers[actor.node] = Peer(actor.node, listener.address, Owner.current(), False, 0, 0)
        self._come.add(actor)
        while len(self._come) < size.nodes * size.locals:
            if not self._waiting.wait(deadline - self._scheduler.now) and len(self._come) < size.nodes * size.locals:
                listener.listening.close()
                raise LauncherError("a process ended before all had come")
        self._waiting.wake_all()
        if actor.local:
            listener.listening.close()
            return None
        return Introduced(bytes(TOKEN_BYTES), [self._peers[node] for node in range(size.nodes)], listener)


@dataclass(frozen=True, slots=True)
class Staging:
    """A process of `dlio stage`.

    Attributes:
        strategy: by which it stages.
        introduction: which the nodes get as by MPI; None if they meet in a folder.
    """

    strategy: str
    introduction: Introduction | None = None

    def __call__(self, actor: Actor) -> None:
        """Stages, and compares every byte of the copy."""
        cluster = actor.cluster
        job = Job(source_of(cluster.data.manifest), cluster.dest(actor.node), Topology.from_env(), NO_OPTIONS)
        chosen = load(self.strategy)
        content = job.manifest.content_id
        place = self._place(actor, content) if chosen.NEEDS.exchange else None
        meeting = Meeting(place, actor.node, cluster.size.nodes, content) if place else None
        if self.introduction and not place:
            job = replace(job, topology=replace(job.topology, node_rank=0, num_nodes=1))
        plan, outcome = chosen.plan(job), complete(job, chosen, meeting)
        root = outcome.manifest.root
        cluster.oracle.published(root, frozenset(file.name for file in plan.wanted))
        for file in plan.wanted:
            cluster.oracle.delivered(actor, file.name, 0, file.num_bytes, (root / file.name).read_bytes())

    def _place(self, actor: Actor, content: str) -> MeetingFolder | Introduced | None:
        """Returns where a node's first process meets the other nodes."""
        nodes = actor.cluster.size.nodes
        if self.introduction:
            return self.introduction.place(actor, content)
        if actor.local or nodes == 1:
            return None
        return MeetingFolder(meeting_folder(content), actor.node, nodes)


@dataclass(frozen=True, slots=True)
class Loading:
    """A rank of a training that reads its batches while the copy is filled, in the order that dlio's loaders have.

    Attributes:
        strategy: of the agent.
        share: the part of its batches in an epoch that it reads, from 0 to 1.
        think: returns the seconds that it takes between two batches.
        epochs: how many it reads.
        again_at: ns of the schedule, after which it reads of all files once more; 0 if it does not.
        doubt: the part of what it reads that it takes for wrong, from 0 to 1, as if a bit had turned on the way to it.
        room: the bytes that its node may keep; None for all.
    """

    strategy: str
    share: float
    think: Callable[[], float]
    epochs: int = 1
    again_at: int = 0
    doubt: float = 0.0
    room: int | None = None

    def __call__(self, actor: Actor) -> None:
        """Reads, and compares."""
        cluster = actor.cluster
        chance = Chance(cluster.scheduler.seed, f"{actor} {actor.lives}")
        source = cluster.data.manifest.root
        folder = ensure_agent(source, cluster.dest(actor.node), strategy=self.strategy, cache_bytes=self.room)
        filling = find_filling(folder, source)
        rank, num_ranks = rank_from_env()
        for epoch in range(self.epochs):
            steps = [*cluster.orders.steps(epoch, rank, num_ranks)]
            if filling and not epoch:
                filling.expect(first_uses([step.indices for step in steps], np.array(cluster.data.manifest.offsets)))
            for number, step in islice(enumerate(steps), max(1, round(self.share * len(steps)))):
                pause(cluster, self.think())
                for file, begin, end in map(cluster.data.place_of, step.indices.tolist()):
                    self._read(actor, folder.path, filling, file, [(begin, end - begin), *_drawn(file, chance)], chance)
                cluster.oracle.took(cluster.orders.take(rank, epoch, number, step))
        if self.again_at:
            pause(cluster, max(0, self.again_at - cluster.scheduler.now) / S)
            for file in chance.shuffled(files_of(cluster.data.manifest.shards)):
                self._read(actor, folder.path, filling, file, [*_drawn(file, chance), (0, 1)], chance)

    def _read(
        self,
        actor: Actor,
        root: Path,
        filling: LiveFilling | None,
        file: File,
        ranges: Iterable[tuple[int, int]],
        chance: Chance,
    ) -> None:
        """Reads ranges of a file, each a begin and a length, wherever they are."""
        with actor.cluster.oracle.patience(actor):
            arriving = filling.prepare([file.name]) if filling else ()
            with arrivals.opening(filling if arriving else None):
                opened = RandomAccessFile(root / file.name)
            with closing(opened):
                for begin, count in ranges:
                    is_doubted = chance.happens(self.doubt)
                    _read_range(actor, file, begin, count, opened.read, is_doubted=is_doubted)


def pause(cluster: Cluster, seconds: float) -> None:
    """Asks for nothing for a while."""
    cluster.oracle.thinks(seconds)
    cluster.world.sleep(seconds)


def _drawn(file: File, chance: Chance) -> Iterator[tuple[int, int]]:
    """Yields ranges of a file; some as long as others, so that answers may be mixed up."""
    for _ in range(chance.below(_MOST_READS)):
        begin = chance.below(file.num_bytes)
        yield begin, min(file.num_bytes - begin, chance.pick((_USUAL_READ, 1 + chance.below(_MOST_READ))))


def give_back(cluster: Cluster, node: int) -> None:
    """Makes the epilogue of a node end the job's leases, if its disk lets it: then the agents of the copies end."""
    process = cluster.world.process(node)
    process.environ = cluster.environ(node, 0)

    def work() -> None:
        with suppress(StorageError):
            lease.drop(cluster.dest(node), job_name())
        process.kill()

    cluster.scheduler.spawn(process, work, "epilogue")


def _read_range(
    actor: Actor, file: File, begin: int, count: int, read: Callable[[int, int], bytes], *, is_doubted: bool
) -> None:
    """Reads a range; once more, from the source, if it is wrong or doubted, as readers do whose checksums are.

    Raises:
        CorruptRecordError: it is wrong again.
    """
    oracle, found = actor.cluster.oracle, read(begin, count)
    if not oracle.delivered(actor, file.name, begin, begin + count, found) or is_doubted:
        oracle.causes.happened("doubt", {actor.node})
        actor.cluster.scheduler.note("from the source", file.name, begin, count)
        with arrivals.from_source():
            flips = actor.cluster.flips
            found = read(begin, count)
        if not oracle.delivered(actor, file.name, begin, begin + count, found):
            if actor.cluster.flips == flips:
                oracle.still_wrong(actor, file.name, begin)
            raise CorruptRecordError(f"{file.name} is wrong twice from {begin} on")
