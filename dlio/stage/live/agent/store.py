"""The files that a node keeps: under their final names once their digests are right, until then with their blocks.

A process continues what a dead one has left: the blocks say what is there, and the digest verifies it in the end. A
small file has no blocks: it is written at once, and verified on the way.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import TypeVar

from dlio.dataset.manifest import File
from dlio.errors import DigestError, StorageError
from dlio.io import files, trace
from dlio.stage.cache.access import Access
from dlio.stage.live.agent.failures import FULL, FullError
from dlio.stage.live.blocks import Blocks
from dlio.stage.live.folder import FILES, SMALL_BYTES, LiveFolder
from dlio.stage.live.wire import Span

_BLOCK_BYTES = 1 << 20  # read from the page cache, by several threads at once

T = TypeVar("T")

#: Makes an unfinished file before its first byte.
Create = Callable[[Path, File], None]


class Store:
    """The kept files, by their numbers; for any number of threads.

    Args:
        live: the live folder.
        listed: all files of the data set, in the order of the manifest.
        kept: the numbers of the files that this node keeps.
        lacking: those of them that have no final name, or are damaged.
        access: returns who may read a finished file.
        create: makes an unfinished file; None for a plain file.
        report: called with the bytes written since the last call, never from two threads at once.

    Attributes:
        written_bytes: written so far, holes included.
    """

    def __init__(
        self,
        live: LiveFolder,
        listed: Sequence[File],
        kept: Collection[int],
        lacking: Collection[int],
        access: Callable[[File], Access],
        create: Create | None = None,
        report: Callable[[int], None] | None = None,
    ) -> None:
        self.listed = listed
        self._live, self._access, self._create, self._report = live, access, create, report
        self._files = live.path / FILES
        self._kept = kept
        self._lock, self._counting = threading.Lock(), threading.Lock()
        self._begun: dict[int, Blocks] = {}
        self._new = set[int]()  # of zeros but for what was written
        self._finished = set(kept).difference(lacking)
        self.written_bytes = 0
        self._finished_bytes = sum(listed[number].num_bytes for number in self._finished)

    def __contains__(self, number: int) -> bool:
        return number in self._kept

    @cached_property
    def num_bytes(self) -> int:
        """The size of all kept files."""
        return sum(self.listed[number].num_bytes for number in self._kept)

    @property
    def present_bytes(self) -> int:
        """The bytes of them that are there."""
        with self._lock:
            begun, finished = list(self._begun.values()), self._finished_bytes
        return finished + sum(blocks.present_bytes for blocks in begun)

    @property
    def unfinished(self) -> list[int]:
        """The numbers of the kept files that have no final name yet."""
        return [number for number in self._kept if number not in self._finished]

    @property
    def is_complete(self) -> bool:
        """Whether all kept files have their final names."""
        return len(self._finished) == len(self._kept)

    def is_finished(self, number: int) -> bool:
        """Returns whether a file has its final name."""
        return number in self._finished

    def missing(self, number: int, spans: Sequence[Span]) -> list[Span]:
        """Returns what is missing of the spans of a kept file, rounded out to blocks.

        Raises:
            FullError: there is no room for the file.
            StorageError: the file cannot be made.
        """
        if self._is_small(number):
            size = self.listed[number].num_bytes
            return [(0, size)] if size and not self.is_finished(number) else []
        blocks = self._blocks(number)
        return blocks.missing_of(spans) if blocks else []

    def write(self, number: int, begin: int, data: memoryview, source_name: Callable[[int], str] = str) -> None:
        """Writes a span, then notes that it is there; a small file is finished.

        Args:
            number, begin, data: the file, the span's begin and its bytes.
            source_name: returns the name of a file at the source, for the message.

        Raises:
            DigestError: a small file is not what its digest says.
            StorageError: the file system refuses.
        """
        if self._is_small(number):
            self._write_small(number, data, source_name)
            return
        path, blocks, end = self._path(number), self._blocks(number), begin + len(data)
        if blocks is None:
            return
        if not (number in self._new and _is_hole(data)):
            self._write(number, path, begin, data)
        blocks.set(begin, end)
        self._count(len(data))

    def _count(self, num_bytes: int) -> None:
        with self._counting:
            self.written_bytes += num_bytes
            if self._report:
                self._report(num_bytes)

    def _write(self, number: int, path: Path, begin: int, data: memoryview) -> None:
        try:
            with (
                files.storage_errors("write", path),
                trace.span("write copy", "stage", path.name),
                _opened(path, os.O_WRONLY) as descriptor,
            ):
                _pwrite(descriptor, data, begin)
        except StorageError:
            self._new.discard(number)  # a part of it may be written
            raise

    def _is_small(self, number: int) -> bool:
        return self.listed[number].num_bytes <= SMALL_BYTES

    def _write_small(self, number: int, data: memoryview, source_name: Callable[[int], str]) -> None:
        """Writes, verifies and names a file; raises as `write`."""
        if self.is_finished(number):
            return
        file, path = self.listed[number], self._path(number)
        if (found := _digest(data, file)) != file.digest:
            raise _damaged(source_name(number), file, found)
        with (
            files.storage_errors("write", path),
            trace.span("write copy", "stage", path.name),
            self._made(path, file) as descriptor,
        ):
            _pwrite(descriptor, data, 0)
            files.sync_written(descriptor)
            files.check_length(path, descriptor, file.num_bytes)
        self._name(number)
        self._count(file.num_bytes)

    def clear(self, number: int, spans: Sequence[Span]) -> None:
        """Notes that spans are not there, unless the file is finished, and so verified."""
        if not self._is_small(number) and (blocks := self._blocks(number)):
            self._new.discard(number)
            for begin, end in spans:
                blocks.clear(begin, end)

    def is_whole(self, number: int) -> bool:
        """Returns whether all blocks of a file are there."""
        if self._is_small(number):
            return self.is_finished(number) or not self.listed[number].num_bytes
        blocks = self._blocks(number)
        return blocks is None or blocks.is_whole

    def finish(self, number: int, source: str) -> None:
        """Compares the digest of a whole file, and gives it its final name.

        Args:
            number: the file.
            source: its name at the source, for the message.

        Raises:
            DigestError: it is not what its digest says.
            StorageError: the file system refused.
        """
        if self._is_small(number):
            self._write_small(number, memoryview(b""), lambda _: source)
            return
        file, path = self.listed[number], self._path(number)
        found = files.digest_file(path, file.digest.partition(":")[0], _BLOCK_BYTES)
        if found != file.digest:
            raise _damaged(source, file, found)
        try:
            files.sync_file(path)
        except StorageError:  # its pages count as clean now, so a second sync would bring nothing to the disk
            self.clear(number, [(0, file.num_bytes)])
            raise
        self._name(number)
        self._live.blocks(file).unlink(missing_ok=True)

    def _name(self, number: int) -> None:
        """Gives a file its final name, and others access to it; raises StorageError if the file system refuses."""
        file, path = self.listed[number], self._path(number)
        final, access = self._live.staged.path / file.name, self._access(file)
        with files.storage_errors("publish", final):
            access.give_file(path)
            _with_folder(final, lambda: path.replace(final))
        with self._lock:
            self._finished.add(number)
            self._finished_bytes += file.num_bytes
            self._begun.pop(number, None)  # unmapped once no thread looks at it any more

    @contextmanager
    def opened(self, number: int) -> Iterator[int]:
        """Yields a descriptor to read a kept file from, be it finished or not; raises StorageError."""
        path = self._path(number)
        with files.storage_errors("read", path):
            if number not in self._finished:
                with suppress(FileNotFoundError):  # finished just now
                    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
                    with _closing(descriptor):
                        yield descriptor
                    return
            with _opened(self._live.staged.path / self.listed[number].name, os.O_RDONLY) as descriptor:
                yield descriptor

    def _path(self, number: int) -> Path:
        return self._files / self.listed[number].name

    def _blocks(self, number: int) -> Blocks | None:
        """Returns the bitmap of an unfinished file, made or gone on with at the first use; None if it is finished."""
        with self._lock:
            if number in self._finished:
                return None
            if number not in self._begun:
                try:
                    self._begun[number] = self._begin(number)
                except StorageError as error:
                    if error.errno in FULL:
                        raise FullError(error.errno, error.strerror) from error
                    raise
            return self._begun[number]

    def _begin(self, number: int) -> Blocks:
        file, path, bits = self.listed[number], self._path(number), self._live.blocks(self.listed[number])
        with files.storage_errors("create", path):
            if path.is_file() and path.stat().st_size == file.num_bytes and not path.is_symlink():
                with suppress(StorageError):
                    return Blocks.open(bits, file.num_bytes, is_writable=True)
            path.unlink(missing_ok=True)
            aside = path.with_name(f"{path.name}.new")
            with self._made(aside, file) as descriptor:
                os.ftruncate(descriptor, file.num_bytes)
            blocks = Blocks.create(bits, file.num_bytes)
            aside.rename(path)  # readers see it with its size and its blocks
            self._new.add(number)
            return blocks

    def _made(self, path: Path, file: File) -> AbstractContextManager[int]:
        """Returns the descriptor of an empty file, made or emptied, until it is left; raises StorageError, OSError."""
        flags = os.O_WRONLY | os.O_TRUNC
        if self._create is None:
            return _with_folder(path, lambda: _opened(path, flags | os.O_CREAT))
        if not path.is_file():
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._create(path, file)
        return _opened(path, flags)


def _with_folder(path: Path, make: Callable[[], T]) -> T:
    """Returns what `make` returns, which makes `path`; makes its folder if that is missing."""
    try:
        return make()
    except FileNotFoundError:  # rather than to look each time: that takes as long as the rest
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return make()


def _digest(data: memoryview, file: File) -> str:
    """Returns the digest of data by a file's algorithm."""
    algorithm = file.digest.partition(":")[0]
    running = files.new_hash(algorithm)
    running.update(data)
    return f"{algorithm}:{running.hexdigest()}"


def _is_hole(data: memoryview) -> bool:
    return not data[0] and not data[-1] and data.tobytes() == bytes(len(data))


def _pwrite(descriptor: int, data: memoryview, offset: int) -> None:
    while data:
        count = os.pwrite(descriptor, data, offset)
        data, offset = data[count:], offset + count


def _damaged(source: str, file: File, found: str) -> DigestError:
    return DigestError(f"{source} is damaged: expected the digest {file.digest}, found {found}: pack it anew")


def _opened(path: Path, flags: int) -> AbstractContextManager[int]:
    """Opens a file at once, and closes it when the context is left."""
    return _closing(os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))


@contextmanager
def _closing(descriptor: int) -> Iterator[int]:
    try:
        yield descriptor
    finally:
        os.close(descriptor)
