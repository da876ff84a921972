"""The files that a node keeps: under their final names once their digests are right, until then with their blocks.

An agent continues what a dead one has left: its blocks say what is there, and the digest proves it in the end.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from dlio.dataset.manifest import File
from dlio.errors import DigestError, StorageError
from dlio.io import files
from dlio.io.threads import cached_property
from dlio.stage.live.agent.failures import FULL, FullError
from dlio.stage.live.blocks import Blocks
from dlio.stage.live.folder import FILES, LiveFolder
from dlio.stage.live.wire import Span
from dlio.stage.transfer.copy import Copying, give_name

_BLOCK_BYTES = 1 << 20  # read from the page cache, by several threads at once


class Store:
    """The kept files, by their numbers; for any number of threads.

    Args:
        live: the live folder.
        listed: all files of the data set, in the order of the manifest.
        kept: the numbers of the files that this node keeps.
        access: as `Copying.access`.
    """

    def __init__(self, live: LiveFolder, listed: Sequence[File], kept: Collection[int], copying: Copying) -> None:
        self.listed = listed
        self._live, self._copying = live, copying
        self._files = live.path / FILES
        self._kept = kept
        self._lock = threading.Lock()
        self._begun: dict[int, Blocks] = {}
        self._finished = {number for number in kept if live.staged.has(listed[number])}
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
        blocks = self._blocks(number)
        return blocks.missing_of(spans) if blocks else []

    def write(self, number: int, begin: int, data: memoryview) -> None:
        """Writes a span, then notes that it is there; raises StorageError if the file system refuses."""
        path, blocks, end = self._path(number), self._blocks(number), begin + len(data)
        if blocks is None:
            return
        with files.storage_errors("write", path), _opened(path, os.O_WRONLY) as descriptor:
            offset = begin
            while data:
                count = os.pwrite(descriptor, data, offset)
                data, offset = data[count:], offset + count
        blocks.set(begin, end)

    def clear(self, number: int, spans: Sequence[Span]) -> None:
        """Notes that spans are not there, unless the file is finished, and so proved right."""
        if blocks := self._blocks(number):
            for begin, end in spans:
                blocks.clear(begin, end)

    def is_whole(self, number: int) -> bool:
        """Returns whether all blocks of a file are there."""
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
        file, path = self.listed[number], self._path(number)
        found = files.digest_file(path, file.digest.partition(":")[0], _BLOCK_BYTES)
        if found != file.digest:
            raise DigestError(f"{source} is damaged: expected the digest {file.digest}, found {found}: pack it again")
        try:
            files.sync_file(path)
        except StorageError:  # its pages count as clean now, so a second sync would bring nothing to the disk
            self.clear(number, [(0, file.num_bytes)])
            raise
        give_name(path, self._copying.final / file.name, self._copying.access(file))
        with self._lock:
            self._finished.add(number)
            self._finished_bytes += file.num_bytes
            self._begun.pop(number, None)  # unmapped once no thread looks at it any more
        self._live.blocks(file).unlink(missing_ok=True)

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
            with _opened(self._copying.final / self.listed[number].name, os.O_RDONLY) as descriptor:
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
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            path.unlink(missing_ok=True)
            blocks = Blocks.create(bits, file.num_bytes)
            aside = path.with_name(f"{path.name}.new")
            with _opened(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) as descriptor:
                os.ftruncate(descriptor, file.num_bytes)
            aside.rename(path)  # readers see it with its size and its blocks
            return blocks


@contextmanager
def _opened(path: Path, flags: int) -> Iterator[int]:
    descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with _closing(descriptor):
        yield descriptor


@contextmanager
def _closing(descriptor: int) -> Iterator[None]:
    try:
        yield
    finally:
        os.close(descriptor)
