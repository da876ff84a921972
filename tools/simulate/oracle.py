"""Invariants of every schedule, checked when something is delivered, named or ended.

A promise that is broken is noted, and ends the schedule: the trace up to there is the shortest of this seed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from dlio.dataset.manifest import NAME as MANIFEST
from dlio.stage.copies.base_folder import CACHE, CONTROL, LEASES
from dlio.stage.copies.folder import LIVE
from dlio.stage.copies.live_folder import FILES
from tools.simulate.causes import SPOILING, Causes
from tools.simulate.disk import WRITE, Disk
from tools.simulate.process import Process
from tools.simulate.scheduler import MS, S, Scheduler
from tools.simulate.source import COUNTED_BYTES, Source
from tools.simulate.storage import NAME, Call

#: Where there is no room, or a disk fails, a warning says that a copy has no lease; power that fails may take it.
_WITHOUT_LEASE = frozenset({
    "power", "gone", *(f"disk-{kind}" for kind in ("full", "quota", "eio-read", "eio-write", "eio-sync", "stale")),
})  # fmt: skip
#: The promises, by their short names.
PROMISES = {
    "right-bytes": "no byte is delivered that is not the sample's",
    "planned-order": "all ranks together take each sample once an epoch, in the batches of its plan",
    "proved-name": "no file has its final name unless its bytes are what its digest says",
    "whole-copy": "a copy with a manifest is whole, also after a loss of power",
    "kept-copy": "nothing of a finished copy is lost",
    "leased-copy": "a finished copy has the lease of its job",
    "from-source": "once wrong bytes of a file came, more of it is asked of the source only",
    "read-once": "the source is read once, and again only where a fault has kept nodes from what others had read",
    "memory": "the memory for pieces of an agent is bounded",
    "waking": "who waits for bytes continues as soon as they are there",
    "left-alone": "a node that does not answer is left alone for a while",
    "share": "without a fault no node sends more than the others lack of its share",
    "given-back": "an agent ends soon after its job has given the copy back",
    "one-at-work": "one process at a time fills a copy",
    "pace": "without a fault a job takes as long as its nodes take to start, and little more",
    "whole-list": "each process gets a whole list of a folder, begun after it asked",
    "listed-once": "without a fault one process lists a folder for all",
    "patience": "no loader waits forever: it gets its bytes, or an error that says why",
    "no-error": "without a fault nobody gets an error",
    "end": "everybody ends within bounded time after the last fault",
    "no-crash": "no thread of the engine ends by an exception",
}
#: ns for which a call of a loader may wait: its agent restarted thrice, each of which may hang in the middle of an
#: answer (20 s), and what the engine itself waits for before it gives up (30 s).
PATIENCE = 150 * S
#: ns of a whole job of some hundred kilobytes where nothing goes wrong: agents start within 400 ms, a node that finds
#: that another has not started checks again after 100 ms, and who asks others whether they have all does so in steps of
#: 100 to 200 ms, each of which a thread that is interrupted (`eager`) may just miss.
PACE = 800 * MS
#: ns within which an agent ends after its job has given its copy back: it checks every 2 s, and ends its connections.
GIVEN_BACK = 6 * S


@dataclass(frozen=True, slots=True)
class Violation:
    """A broken promise: which, when in ns, and what was found."""

    promise: str
    at: int
    found: str

    def __str__(self) -> str:
        return f"{self.promise} at {self.at / S:.6f} s: {PROMISES[self.promise]}; found: {self.found}"


class Oracle:
    """Checks the promises; for one scheduler.

    Args:
        scheduler: of the schedule; halted when a promise is broken.
        contents: the right bytes of each file of the data set, by name.
        source: counts what is read.
        num_nodes: of the job.

    Attributes:
        causes: the faults so far.
        violations: what was broken.
        delivered_bytes: checked so far.
        slowest: ns of the call of a loader that took longest.
        thought: ns until which loaders ask for nothing.
        errors: that loaders got, in order.
    """

    def __init__(self, scheduler: Scheduler, contents: Mapping[str, bytes], source: Source, num_nodes: int) -> None:
        self._scheduler, self._contents, self._source = scheduler, contents, source
        self.causes = Causes(scheduler, num_nodes)
        self.violations: list[Violation] = []
        self.delivered_bytes, self.slowest, self.thought, self.errors = 0, 0, 0, list[str]()
        self._writers: dict[str, dict[Process, None]] = {}
        self._is_given_back = False
        self._published, self._wanted = set[Path](), dict[Path, frozenset[str]]()  # the latter once it is published

    @property
    def may_be_wrong(self) -> bool:
        """Whether something has happened that only checksums notice."""
        return self.causes.has_been(SPOILING)

    @property
    def _may_lack_lease(self) -> bool:
        """Whether disks have failed, so that a warning says that a copy has no lease, or the job has given it back."""
        return self._is_given_back or self.causes.has_been(_WITHOUT_LEASE)

    def broken(self, promise: str, found: str) -> None:
        """Notes that a promise is broken, and ends the schedule."""
        self._scheduler.note("broken", promise)
        self.violations.append(Violation(promise, self._scheduler.now, found))
        self._scheduler.halt()

    def delivered(self, loader: object, name: str, begin: int, end: int, data: bytes | memoryview) -> bool:
        """Checks what a loader got of a file, from one byte up to another; returns whether it is right.

        Formats compare the checksum of each sample. After flipped bits or a loss of power they must; otherwise the
        engine itself must be right, as its blocks are marked as present after they were written.
        """
        self.delivered_bytes += len(data)
        is_right = data == self._contents[name][begin:end]
        if not (is_right or self.may_be_wrong):
            self.broken("right-bytes", f"{loader} got wrong bytes of {name} from {begin} on")
        return is_right

    def took(self, problem: str) -> None:
        """Notes what is wrong with the samples that the ranks took, if anything is."""
        if problem:
            self.broken("planned-order", problem)

    def still_wrong(self, loader: object, name: str, begin: int) -> None:
        """Notes that bytes were wrong again which came from the source, though nothing turned a bit of them there."""
        if not self.causes.has_been({"source-changed"}):
            self.broken("right-bytes", f"{loader} got wrong bytes of {name} from {begin} on, from the source, too")

    def failed(self, error: str, node: int) -> None:
        """Notes an error that a loader or a command of a node got."""
        self.errors.append(error)
        if self.causes.is_calm:
            self.broken("no-error", error)
        self.causes.happened("failure", {node})

    def thinks(self, seconds: float) -> None:
        """Notes that a loader asks for nothing for a while from now on."""
        self.thought = max(self.thought, self._scheduler.now + round(seconds * S))

    @contextmanager
    def patience(self, loader: object) -> Iterator[None]:
        """Checks that a call of a loader returns in time; one that never returns is found by `end`."""
        began = self._scheduler.now
        yield
        took = self._scheduler.now - began
        self.slowest = max(self.slowest, took)
        if took > PATIENCE:
            self.broken("patience", f"{loader} waited for {took / S:.1f} s")

    def called(self, call: Call) -> None:
        """Checks what a call leaves; called by `Storage`."""
        if call.kind == NAME and not self._is_inside(call):
            self._named(call.disk, call)
        elif call.kind == WRITE and f"/{CONTROL}/{LIVE}/{FILES}/" in call.path:
            self._filled(call)

    def _filled(self, call: Call) -> None:
        """Checks that the process that writes to a copy has not been succeeded by another."""
        task, copy = self._scheduler.current, f"{call.disk.name}/{call.path.partition(f'/{CONTROL}/')[0]}"
        assert task
        writers = self._writers.setdefault(copy, {})
        if task.process in writers and task.process is not next(reversed(writers)):
            self.broken("one-at-work", f"{task} writes to {copy}, and {next(reversed(writers))} does, too")
        writers[task.process] = None

    @staticmethod
    def _is_inside(call: Call) -> bool:
        """Returns whether a path is not of a copy's files, but of what dlio keeps in it."""
        parts = call.path.split("/")
        return CACHE not in parts or CONTROL in parts

    def _named(self, disk: Disk, call: Call) -> None:
        name, found = call.name, disk.root / call.path
        if name in self._contents:
            self._scheduler.note("named", disk.name, name)
            if found.read_bytes() != self._contents[name]:
                self.broken("proved-name", f"{call.path} on {disk.name} is not what its digest says")
            elif disk.durable and not disk.durable.holds(found):
                self.broken("proved-name", f"{call.path} on {disk.name} is not on the disk as its digest says")
        elif name == MANIFEST:
            self._check_lease(found.parent)

    def _check_lease(self, copy: Path) -> None:
        if not self._may_lack_lease and not list((copy.parent / LEASES).glob(f"{copy.name}@*")):
            self.broken("leased-copy", f"{copy.name} is finished, and no lease is on it")

    def check_copies(self, disk: Disk) -> None:
        """Checks all copies on a disk: after a loss of power, and in the end."""
        for copy in sorted(self._published):
            if copy.is_relative_to(disk.root) and not copy.exists():
                self.broken("kept-copy", f"{disk.name} had the finished copy {copy.name}, of which nothing is there")
        caches = [Path(around, CACHE) for around, folders, _ in os.walk(disk.root) if CACHE in folders]
        for cache in sorted(caches):
            for copy in sorted(path for path in cache.iterdir() if path.name[0] != "." and path.is_dir()):
                self._check_copy(disk, copy)

    def _check_copy(self, disk: Disk, copy: Path) -> None:
        there: dict[str, Path] = {}
        for around, folders, names in os.walk(copy):
            folders[:] = sorted(name for name in folders if name != CONTROL)
            there.update({name: Path(around, name) for name in names})
        for name in sorted(there.keys() & self._contents.keys()):
            if there[name].read_bytes() != self._contents[name]:
                self.broken("proved-name", f"{there[name].relative_to(disk.root)} on {disk.name}")
        lacking = self._wanted.get(copy, frozenset(self._contents)) - there.keys()
        if MANIFEST in there and lacking:
            self.broken("whole-copy", f"{disk.name} has the manifest of a copy, and lacks {sorted(lacking)[0]}")
        if copy in self._published and (MANIFEST not in there or lacking):
            self.broken("kept-copy", f"{disk.name} had a finished copy, and lacks {sorted(lacking)[:1] or MANIFEST}")

    @contextmanager
    def publishing(self, copy: Path, names: Iterable[str]) -> Iterator[None]:
        """Notes that a copy of these files gets its manifest in the block, and is finished afterwards."""
        self._wanted[copy] = frozenset(names)
        yield
        self.published(copy, names)

    def published(self, copy: Path, names: Iterable[str]) -> None:
        """Notes that a copy is finished, as a command or an agent reports; nothing of it may be lost from now on."""
        self._published.add(copy)
        self._wanted[copy] = frozenset(names)
        self._scheduler.note("finished", copy.name)
        self._check_lease(copy)

    def check_reads(
        self,
        homes: Callable[[str, int], int | None] = lambda name, begin: None,
        *,
        is_shared: bool = True,
        kept: Set[str] | None = None,
        distrusted: Set[tuple[Process | None, str]] = frozenset(),
    ) -> None:
        """Checks that nothing was read from the source again without a cause.

        Args:
            homes: returns the node that reads what begins at a byte of a file for the others, if none is lost.
            is_shared: whether nodes pass files to each other, or each reads the source for itself.
            kept: the names of the files that their homes alone keep for the others, if not all nodes keep all.
            distrusted: the processes that read a file from the source as wrong bytes came, and its name.
        """
        for (name, block), reads in sorted(self._source.reads.items()):
            if kept is not None and name not in kept:
                continue
            home = homes(name, block * COUNTED_BYTES)
            for number, read in enumerate(reads):
                before = [each for each in reads[:number] if is_shared or each.node == read.node]
                if not before or (read.process, name) in distrusted:
                    continue
                own = [each for each in before if each.process is read.process and kept is None]
                others = [each for each in before if each not in own]
                is_lost = not own or self.causes.excuses_again(read, own)
                if not is_lost or (others and not self.causes.excuses(read, others, home, is_only=kept is not None)):
                    of = f"block {block} of {name}" + (f", whose home is node {home}," if home is not None else "")
                    self.broken(
                        "read-once",
                        f"node {read.node} read {of} at {read.at / S:.6f} s without a cause; "
                        f"before: {', '.join(f'node {each.node} at {each.at / S:.6f} s' for each in before)}",
                    )
                    return

    def check_pace(self, done_at: int) -> None:
        """Checks that every process was done soon and waited little, if there was no fault and nothing is slow."""
        if self.causes.is_calm and (done_at > PACE or self.slowest > PACE):
            self.broken("pace", f"{done_at / S:.3f} s, and {self.slowest / S:.3f} s for a call of a loader")

    def check_given_back(self, since: int) -> None:
        """Checks that agents do not continue for long after a copy was given back, if there was no fault; in ns."""
        self._is_given_back = True  # an agent may finish a copy before it looks for its lease
        if not self.causes.troubles and self._scheduler.now > since + GIVEN_BACK:
            self.broken("given-back", f"after {(self._scheduler.now - since) / S:.1f} s agents are there still")

    def end(self, waiting: Sequence[object], last_fault: int) -> None:
        """Checks, at the end of a schedule, that every process has ended.

        Args:
            waiting: those who have not.
            last_fault: when it came, in ns.
        """
        if waiting:
            who = ", ".join(map(str, waiting[:4]))
            self.broken("end", f"{(self._scheduler.now - last_fault) / S:.0f} s after the last fault wait still: {who}")

    def check_crashes(self) -> None:
        """Checks that no thread of the engine has ended by an exception."""
        for task in self._scheduler.failed:
            self.broken("no-crash", f"{task} ended by {type(task.error).__name__}: {task.error}")
