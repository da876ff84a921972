"""The files that a node keeps: under their final names once their digests are right, until then with their blocks.

A process continues what a dead one has left: the blocks say what is present, and the digest verifies it in the end. A
small file has no blocks, nor has one that comes whole before a reader asks: it is verified, written and named at once.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from dlio.dataset.manifest import File
from dlio.dataset.tree import SMALL_BYTES
from dlio.errors import StorageError
from dlio.io import files, trace, world
from dlio.io.files import Span
from dlio.rights.access import Access
from dlio.stage.copies.base_folder import CONTROL
from dlio.stage.copies.learned import Learned
from dlio.stage.copies.live_folder import LiveFolder
from dlio.stage.copies.tree import Groups
from dlio.stage.engine import writing
from dlio.stage.engine.failures import FullError
from dlio.stage.engine.running_digest import Begun, Held, RunningDigest
from dlio.stage.planning.plan import Plan


class Store:
    """The kept files, by their numbers; for any number of threads.

    Args:
        live: the live folder.
        plan: lists the files, and says which of them this node keeps.
        lacking: the numbers of those that have no final name, or are damaged.
        name_of, access: name a file at its source, and say who may read it; the latter raises StorageError.
        create: makes an unfinished file; None for a plain file.
        report: called with the bytes written since the last call, by one thread at a time.
        is_hurried: somebody waits until all files are here.

    Attributes:
        written_bytes: written so far, holes included.
        num_bytes: the size of all kept files.
    """

    def __init__(
        self,
        live: LiveFolder,
        plan: Plan,
        lacking: Collection[int],
        name_of: Callable[[File], str],
        access: Callable[[File], Access],
        create: writing.Create | None = None,
        report: Callable[[int], None] | None = None,
        *,
        is_hurried: bool = True,
    ) -> None:
        self.listed, self._name_of, self._access = plan.listed, name_of, access
        self._create, self._report = create, report
        self._files, self._final = live.files, str(live.staged.path)
        self.learned = Learned(live.staged.path, plan.groups)
        if grouped := plan.groups:
            self._groups = Groups(live.staged.path, grouped, self.learned, live.files)
        self._grouped = grouped
        self._lock, self._counting, self._finished = world.lock(), world.lock(), set[int]()
        self._begun, self._at_once = dict[int, Begun](), set[int]()  # the latter are being written as a whole
        self._has_residue = self._files.is_dir() and any(each.name != CONTROL for each in self._files.iterdir())
        self._held = Held(plan.num_nodes if plan.divides else 0, is_hurried=is_hurried)
        self.written_bytes = 0
        self.keep(plan, lacking)

    def keep(self, plan: Plan, lacking: Collection[int]) -> None:
        """Keeps what a plan says, and all that it kept before; see `Store`."""
        with self._lock:
            self._kept, self._may_grow = plan.kept, plan.is_waiting
            self._finished |= plan.kept.difference(lacking, self._begun)  # who has begun one notes its end
            sizes = (sum(self.listed[number].num_bytes for number in some) for some in (self._kept, self._finished))
            self.num_bytes, self._finished_bytes = sizes

    def __str__(self) -> str:
        return f"the file system of {self._final}"

    def __contains__(self, number: int) -> bool:
        return number in self._kept

    def source_name(self, number: int) -> str:
        """Returns the name of a file at the source, for messages."""
        return self._name_of(self.listed[number])

    @property
    def present_bytes(self) -> int:
        """The bytes of them that are present."""
        with self._lock:
            begun, finished = list(self._begun.values()), self._finished_bytes
        return finished + sum(each.blocks.present_bytes for each in begun)

    @property
    def is_complete(self) -> bool:
        """Whether all files that it is to keep have their final names."""
        with self._lock:
            return len(self._finished) == len(self._kept) and not self._may_grow

    def is_finished(self, number: int) -> bool:
        """Returns whether a file has its final name."""
        return number in self._finished

    def missing(self, number: int, spans: Sequence[Span], *, begins: bool = True) -> list[Span]:
        """Returns what is missing of the spans of a kept file, rounded out to blocks; all of a small file.

        If that `begins` the file, it is made, for a reader of its parts; else an absent one may be wanted at once.

        Raises:
            FullError, StorageError: there is no room for the file, or it cannot be made.
        """
        if self._is_small(number):
            return [] if self.is_whole(number) else [(0, self.listed[number].num_bytes)]
        if begun := self._unfinished(number, begins=begins):
            return begun.blocks.missing_of(spans)
        is_whole = (num_bytes := self.listed[number].num_bytes) <= writing.ONCE_BYTES
        return [] if number in self._finished else [(0, num_bytes)] if is_whole else list(spans)

    def write(
        self,
        number: int,
        begin: int,
        data: memoryview,
        release: Callable[[], None] = lambda: None,
        *,
        is_cached: bool = True,
    ) -> None:
        """Writes a span, then notes that it is present.

        Args:
            number, begin, data: the file, and the span.
            release: called once `data` is not used any more, which may be after this has returned; not if this raises.
            is_cached: write it through the page cache, else past it.

        Raises:
            DigestError: a file that is written at once is not what its digest says.
            StorageError: the file system refused.
        """
        path = self._path(number)
        with files.storage_errors("write", path), trace.span("write copy", "stage", self.listed[number].name):
            if self.listed[number].name in self._grouped:
                self._write_group(number, data)
            elif self._is_small(number):
                self._write_whole(number, path, data)
            elif self._comes_at_once(number, begin, data):
                try:
                    self._write_whole(number, path, data)
                finally:
                    self._at_once.discard(number)
            elif begun := self._unfinished(number):
                digest = begun.digest  # the file may be whole after this, and be found damaged: then it gets another
                with digest.writing(begin, is_cached=is_cached):
                    begun.write(path, begin, data, is_cached=is_cached)
                    self._count(len(data))
                digest.add(begin, data, release)
                return
        release()

    def _count(self, num_bytes: int) -> None:
        with self._counting:
            self.written_bytes += num_bytes
            if self._report:
                self._report(num_bytes)

    def _comes_at_once(self, number: int, begin: int, data: memoryview) -> bool:
        """Returns whether a span is a whole file of which nothing is here; no other thread begins it then."""
        file = self.listed[number]
        with self._lock:
            if begin or len(data) != file.num_bytes or len(data) > writing.ONCE_BYTES or not self._is_absent(number):
                return False
            self._at_once.add(number)
            return True

    def _is_absent(self, number: int) -> bool:
        """Returns whether nothing of a file is here, and nobody writes it; the caller holds the lock."""
        if number in self._finished or number in self._begun or number in self._at_once:
            return False
        return not (self._has_residue and os.path.lexists(self._path(number)))

    def _write_whole(self, number: int, path: str, data: memoryview) -> None:
        """Verifies, writes and names a whole file; raises DigestError, StorageError, OSError."""
        if self.is_finished(number):
            return
        file = self.listed[number]
        self.learned.check(file, files.digest_bytes(data, self._algorithm(number)), lambda: self.source_name(number))
        access = self._access(file)
        reads_end = not self._is_small(number)
        writing.write_whole(str(self._files), path, file, data, self._create, access, reads_end=reads_end)
        self._name(number, path)
        self._count(file.num_bytes)

    def _write_group(self, number: int, data: memoryview) -> None:
        if not self.is_finished(number):
            self._groups.write(self.listed[number].name, data)
            self._note_finished(number)
            self._count(len(data))

    def clear(self, number: int, spans: Sequence[Span]) -> None:
        """Notes that spans are not there, unless the file is finished, and so verified; raises StorageError."""
        if not self._is_small(number) and (begun := self._unfinished(number, begins=False)):
            begun.is_sparse = False
            begun.digest.end()
            begun.digest = RunningDigest(self._path(number), begun.blocks, self._algorithm(number), self._held)
            with files.storage_errors("write", self._bits(number)):
                for begin, end in spans:
                    begun.blocks.clear(begin, end)

    def is_whole(self, number: int) -> bool:
        """Returns whether all bytes of a file are present."""
        if self._is_small(number):
            return number in self._finished or not self.listed[number].num_bytes
        begun = self._unfinished(number, begins=False)
        return begun.blocks.is_whole if begun else number in self._finished

    def finish(self, number: int, advance: Callable[[], None] = lambda: None) -> None:
        """Compares the digest of a whole file, and gives it its final name; `advance` is called while it is read.

        Raises DigestError, StorageError.
        """
        if self._is_small(number):
            self.write(number, 0, memoryview(b""))
        elif begun := self._unfinished(number):
            file, path = self.listed[number], self._path(number)
            self.learned.check(file, begun.digest.whole(advance), lambda: self.source_name(number))
            access = self._access(file)
            try:
                with files.storage_errors("sync", path), writing.opened(path, os.O_RDONLY) as descriptor:
                    world.fsync(descriptor)
                    writing.check_last(path, descriptor, file.num_bytes, begun.last_bytes)
                    access.give_open(descriptor)
            except StorageError:  # its pages count as clean now, so a second sync would bring nothing to the disk
                self.clear(number, [(0, file.num_bytes)])
                raise
            self._name(number, path)
            begun.blocks.close()
            self._bits(number).unlink(missing_ok=True)

    def _name(self, number: int, path: str) -> None:
        """Gives a file its final name; raises StorageError."""
        file = self.listed[number]
        final = f"{self._final}/{file.name}"
        with files.storage_errors("publish", final):
            writing.with_folder(self._final, final, lambda: world.replace(path, final))
        self._note_finished(number)

    def _note_finished(self, number: int) -> None:
        with self._lock:
            if number not in self._finished:  # `keep` may have found its name before
                self._finished.add(number)
                self._finished_bytes += self.listed[number].num_bytes
            self._begun.pop(number, None)  # unmapped once no thread uses it any more

    @contextmanager
    def opened(self, number: int) -> Iterator[int]:
        """Yields a descriptor to read a kept file from, be it finished or not; raises StorageError."""
        path = self._path(number)
        with files.storage_errors("read", path):
            if (name := self.listed[number].name) in self._grouped:
                with self._groups.opened(name) as descriptor:
                    yield descriptor
                return
            if number not in self._finished:
                with suppress(FileNotFoundError), writing.opened(path, os.O_RDONLY) as descriptor:  # finished just now
                    yield descriptor
                    return
            with writing.opened(f"{self._final}/{self.listed[number].name}", os.O_RDONLY) as descriptor:
                yield descriptor

    def close(self) -> None:
        """Closes the blocks of unfinished files; nothing else may be called at the same time or later."""
        self.learned.close()
        if self._grouped:
            self._groups.close()
        for begun in self._begun.values():
            begun.blocks.close()

    def _path(self, number: int) -> str:
        return f"{self._files}/{self.listed[number].name}"  # joining a Path takes ten times as long

    def _bits(self, number: int) -> Path:
        return self._files.joinpath(CONTROL, self.listed[number].name)

    def _is_small(self, number: int) -> bool:
        file = self.listed[number]
        return file.num_bytes <= SMALL_BYTES or file.name in self._grouped

    def _algorithm(self, number: int) -> str:
        return self.listed[number].digest.partition(":")[0] or files.DEFAULT_DIGEST

    def _unfinished(self, number: int, *, begins: bool = True) -> Begun | None:
        """Returns a file, gone on with, or made if that `begins` it; None if it is finished or absent."""
        with self._lock:
            if number in self._finished or number in self._at_once or (not begins and self._is_absent(number)):
                return None
            if number not in self._begun:
                try:
                    self._begun[number] = self._gone_on_with(number)
                except StorageError as error:
                    if error.errno in files.FULL:
                        raise FullError(error.errno, error.strerror) from error
                    raise
            return self._begun[number]

    def _gone_on_with(self, number: int) -> Begun:
        file, path, aside = self.listed[number], self._path(number), self._files.joinpath(CONTROL, CONTROL, str(number))
        blocks, is_new = writing.begin(self._files, Path(path), aside, self._bits(number), file, self._create)
        if is_new and not file.digest:
            self.learned.begins(file.name)
        elif not (file.digest or self.learned.is_as_read(file.name)):
            self.learned.receives(file.name)  # perhaps, by the process that began it
        return Begun(blocks, RunningDigest(path, blocks, self._algorithm(number), self._held), is_new)
