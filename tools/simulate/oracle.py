"""What must hold in every schedule, checked when something is delivered, named or ended.

A promise that is broken is noted, and ends the schedule: the trace up to there is the shortest of this seed.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

from dlio.dataset.manifest import NAME
from dlio.stage.copies.base_folder import CACHE, CONTROL, LEASES
from dlio.stage.engine.writing import Buffers
from dlio.stage.planning.flows import THREADS
from tools.simulate.disk import Disk
from tools.simulate.process import Process
from tools.simulate.scheduler import S, Scheduler
from tools.simulate.source import Source

#: The promises, by their short names.
PROMISES = {
    "right-bytes": "no byte is delivered that is not the sample's",
    "proved-name": "no file has its final name unless its bytes are what its digest says",
    "whole-copy": "a copy with a manifest is whole, also after a loss of power",
    "kept-copy": "nothing of a finished copy is lost",
    "leased-copy": "a finished copy has the lease of its job",
    "read-once": "the source is read once, and with faults only as often as docs/live.md says",
    "memory": "the memory for pieces of an agent is bounded",
    "patience": "no loader waits for ever: it gets its bytes, or an error that says why",
    "no-error": "without a fault nobody gets an error",
    "end": "everybody ends within bounded time after the last fault",
    "no-crash": "no thread of the engine ends by an exception",
}
#: ns for which a call of a loader may wait: its agent restarted thrice, each of which may hang in the middle of an
#: answer (20 s), and what the engine itself waits for before it gives up (30 s).
PATIENCE = 150 * S
_HELD = 6  # pieces that came too early (running_digest.py)
MOST_BUFFERS = 2 * THREADS + _HELD + 1
_NEEDED_AGAIN = {"kill": 1, "pieces": 0, "eager": 0, "day": 0, "leave": 0, "think": 0}  # by fault; all nodes by others


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

    Attributes:
        violations: what was broken.
        delivered_bytes: checked so far.
        errors: that loaders got, in order.
        may_be_wrong: whether faults come that only checksums notice.
        may_lack_lease: whether disks fail: then a copy is used without a lease, and a warning says so.
    """

    def __init__(self, scheduler: Scheduler, contents: Mapping[str, bytes], source: Source) -> None:
        self._scheduler, self._contents, self._source = scheduler, contents, source
        self.violations: list[Violation] = []
        self.delivered_bytes, self.errors = 0, list[str]()
        self.may_be_wrong = self.may_lack_lease = False
        self._buffers: defaultdict[Process | None, int] = defaultdict(int)
        self._published: dict[Path, frozenset[str]] = {}

    def broken(self, promise: str, found: str) -> None:
        """Notes that a promise is broken, and ends the schedule."""
        self._scheduler.note("broken", promise)
        self.violations.append(Violation(promise, self._scheduler.now, found))
        self._scheduler.halt()

    def delivered(self, loader: object, name: str, begin: int, end: int, data: bytes | memoryview) -> bool:
        """Checks what a loader got of a file, from one byte up to another; returns whether it is right.

        Formats compare the checksum of each sample. Where bits turn or power is lost they have to; elsewhere the engine
        itself has to be right, as its blocks are marked as present after they were written.
        """
        self.delivered_bytes += len(data)
        is_right = data == self._contents[name][begin:end]
        if not (is_right or self.may_be_wrong):
            self.broken("right-bytes", f"{loader} got wrong bytes of {name} from {begin} on")
        return is_right

    def failed(self, error: str, faults: Collection[str]) -> None:
        """Notes an error that a loader or a command got, given the kinds of all faults that came."""
        self.errors.append(error)
        if not faults:
            self.broken("no-error", error)

    @contextmanager
    def patience(self, loader: object) -> Iterator[None]:
        """Checks that a call of a loader returns in time; one that never returns is found by `end`."""
        began = self._scheduler.now
        yield
        if self._scheduler.now - began > PATIENCE:
            self.broken("patience", f"{loader} waited for {(self._scheduler.now - began) / S:.1f} s")

    def named(self, disk: Disk, path: str) -> None:
        """Checks a file that was given a name; called by `Storage`."""
        name, found = path.rpartition("/")[2], disk.root / path
        is_final = name in self._contents and CACHE in path.split("/") and CONTROL not in path.split("/")
        if is_final:
            self._scheduler.note("named", disk.name, name)
        if is_final and found.read_bytes() != self._contents[name]:
            self.broken("proved-name", f"{path} on {disk.name} is not what its digest says")

    def check_copies(self, disk: Disk) -> None:
        """Checks all copies on a disk: after a loss of power, and in the end."""
        for cache in sorted(disk.root.rglob(CACHE)):
            for copy in sorted(path for path in cache.iterdir() if path.is_dir() and path.name[0] != "."):
                self._check_copy(disk, copy)

    def _check_copy(self, disk: Disk, copy: Path) -> None:
        there = {path.name: path for path in copy.rglob("*") if path.is_file() and CONTROL not in path.parts}
        for name in sorted(there.keys() & self._contents.keys()):
            if there[name].read_bytes() != self._contents[name]:
                self.broken("proved-name", f"{there[name].relative_to(disk.root)} on {disk.name}")
        lacking = self._published.get(copy, frozenset(self._contents)) - there.keys()
        if NAME in there and lacking and not copy.name.count("."):
            self.broken("whole-copy", f"{disk.name} has the manifest of a copy, and lacks {sorted(lacking)[0]}")
        if copy in self._published and (NAME not in there or lacking):
            self.broken("kept-copy", f"{disk.name} had a finished copy, and lacks {sorted(lacking)[:1] or NAME}")

    def published(self, copy: Path, names: frozenset[str]) -> None:
        """Notes that a copy is finished, as a command or an agent reports; nothing of it may be lost from now on."""
        self._published[copy] = names
        self._scheduler.note("finished", copy.name)
        if not self.may_lack_lease and not list((copy.parent / LEASES).glob(f"{copy.name}@*")):
            self.broken("leased-copy", f"{copy.name} is finished, and no lease is on it")

    def removed(self, copy: Path) -> None:
        """Notes that a user has removed a copy."""
        self._published.pop(copy, None)

    @contextmanager
    def counting_memory(self) -> Iterator[None]:
        """Counts the memory for pieces of each process until the block ends."""
        take, give_back = Buffers.take, Buffers.give_back

        def counted_take(buffers: Buffers) -> memoryview:
            process = self._scheduler.current and self._scheduler.current.process
            self._buffers[process] += 1
            if self._buffers[process] > MOST_BUFFERS:
                self.broken("memory", f"{process} uses {self._buffers[process]} pieces of memory")
            return take(buffers)

        def counted_back(buffers: Buffers, buffer: memoryview) -> None:
            self._buffers[self._scheduler.current and self._scheduler.current.process] -= 1
            give_back(buffers, buffer)

        with mock.patch.object(Buffers, "take", counted_take), mock.patch.object(Buffers, "give_back", counted_back):
            yield

    def check_reads(self, faults: Sequence[str], num_nodes: int, *, is_shared: bool = True) -> None:
        """Checks how often the source was read.

        Args:
            faults: the kinds of all that came.
            num_nodes: of the job.
            is_shared: whether nodes pass files to each other, or each reads the source for itself.
        """
        times, name, block = self._source.most_read()
        if times > (most := most_reads(faults, num_nodes) * (1 if is_shared else num_nodes)):
            self.broken(
                "read-once", f"block {block} of {name} was read {times} times, at most {most} with these faults"
            )

    def end(self, waiting: Sequence[object], last_fault: int) -> None:
        """Checks, at the end of a schedule, that everybody has ended."""
        if waiting:
            who = ", ".join(map(str, waiting[:4]))
            self.broken("end", f"{(self._scheduler.now - last_fault) / S:.0f} s after the last fault wait still: {who}")

    def check_crashes(self, is_expected: Callable[[BaseException], bool]) -> None:
        """Checks that no thread of the engine has ended by an exception that nobody expects."""
        for task in self._scheduler.failed:
            if task.error is not None and not is_expected(task.error):
                self.broken("no-crash", f"{task} ended by {type(task.error).__name__}: {task.error}")


def most_reads(faults: Sequence[str], num_nodes: int) -> int:
    """Returns how often a block of the source may be read, given the kinds of all faults that came.

    Without a fault once. With each fault that ends or delays a node, the next owner reads what that one had not passed
    on, and so may the first when it is back. What cuts ways, so that nodes see different nodes as lost, may have each
    of them read it once; and so may what damages, fills or breaks the disk or source that others would have it from.
    """
    return 1 + sum(_NEEDED_AGAIN.get(kind, num_nodes) for kind in faults)


def copy_of(dest: Path, content: str) -> Path:
    """Returns the folder of a copy of a data set."""
    return Path(os.fspath(dest), CACHE, content)
