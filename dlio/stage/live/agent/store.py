"""The files that a node keeps: under their final names once their digests are right, until then with their blocks.

An agent continues what a dead one has left: its blocks say what is there, and the digest proves it in the end.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from dlio.dataset.manifest import File
from dlio.errors import DigestError, StorageError
from dlio.io import files
from dlio.io.threads import cached_property
from dlio.stage.live.agent.failures import FULL, FullError
from dlio.stage.live.blocks import Blocks
from dlio.stage.live.folder import FILES, LiveFolder
from dlio.stage.live.running_digest import Held, RunningDigest
from dlio.stage.live.wire import Span
from dlio.stage.live.writing import opened, write_new, write_range
from dlio.stage.transfer.copy import Copying, give_name

SMALL_BYTES = 64 << 10  # a file that comes as one piece, has no blocks, and is read when it has its final name


@dataclass(slots=True)
class _Begun:
    """An unfinished file."""

    blocks: Blocks
    digest: RunningDigest


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
        self._begun: dict[int, _Begun] = {}
        self._small: dict[int, str] = {}  # the digests of small files that are whole
        self._held = Held()
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
        return finished + sum(each.blocks.present_bytes for each in begun)

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
        """Returns what is missing of the spans of a kept file, rounded out to blocks; of a small file, all of it.

        Raises:
            FullError: there is no room for the file.
            StorageError: the file cannot be made.
        """
        if self._is_small(number):
            return [] if self.is_whole(number) else [(0, self.listed[number].num_bytes)]
        begun = self._unfinished(number)
        return begun.blocks.missing_of(spans) if begun else []

    def write(self, number: int, begin: int, data: memoryview, release: Callable[[], None] | None = None) -> None:
        """Writes a span, then notes that it is there.

        Args:
            number, begin, data: the file, and the span.
            release: called once `data` is not used any more, unless this raises. With it, the span is written past the
                page cache, and its memory may be used for the digest of the file after this has returned.

        Raises:
            StorageError: the file system refused.
        """
        path = self._path(number)
        if self._is_small(number):
            self._write_small(number, path, data)
        elif begun := self._unfinished(number):
            with files.storage_errors("write", path):
                write_range(path, begin, data, is_cached=release is None)
            begun.blocks.set(begin, begin + len(data))
            begun.digest.add(begin, data, release)
            return
        if release:
            release()

    def _write_small(self, number: int, path: Path, data: memoryview) -> None:
        """Writes a whole small file, in a new one; raises StorageError."""
        with files.storage_errors("write", path):
            try:
                write_new(path, data)
            except (FileExistsError, FileNotFoundError):  # rather than to look each time
                path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                path.unlink(missing_ok=True)
                write_new(path, data)
        running = files.new_hash(algorithm := self._algorithm(number))
        running.update(data)
        self._small[number] = f"{algorithm}:{running.hexdigest()}"

    def clear(self, number: int, spans: Sequence[Span]) -> None:
        """Notes that spans are not there, unless the file is finished, and so proved right."""
        if self._is_small(number):
            self._small.pop(number, None)
        elif begun := self._unfinished(number):
            for begin, end in spans:
                begun.blocks.clear(begin, end)
            begun.digest.end()
            begun.digest = self._digest(number, begun.blocks)

    def is_whole(self, number: int) -> bool:
        """Returns whether all bytes of a file are there."""
        if self._is_small(number):
            return number in self._small or number in self._finished or not self.listed[number].num_bytes
        begun = self._unfinished(number)
        return begun is None or begun.blocks.is_whole

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
        found = self._found_digest(number)
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
            begun = self._begun.pop(number, None)  # unmapped once no thread looks at it any more
        self._small.pop(number, None)
        if begun:
            self._live.blocks(file).unlink(missing_ok=True)

    def _found_digest(self, number: int) -> str:
        """Returns the digest of what was written of a whole file; raises StorageError."""
        if not self._is_small(number):
            begun = self._unfinished(number)
            return begun.digest.whole() if begun else self.listed[number].digest  # finished, so proved right
        if number not in self._small:
            self._write_small(number, self._path(number), memoryview(b""))
        return self._small[number]

    @contextmanager
    def opened(self, number: int) -> Iterator[int]:
        """Yields a descriptor to read a kept file from, be it finished or not; raises StorageError."""
        path = self._path(number)
        with files.storage_errors("read", path):
            if number not in self._finished:
                with suppress(FileNotFoundError), opened(path, os.O_RDONLY) as descriptor:  # finished just now
                    yield descriptor
                    return
            with opened(self._copying.final / self.listed[number].name, os.O_RDONLY) as descriptor:
                yield descriptor

    def _path(self, number: int) -> Path:
        return self._files / self.listed[number].name

    def _is_small(self, number: int) -> bool:
        return self.listed[number].num_bytes <= SMALL_BYTES

    def _algorithm(self, number: int) -> str:
        return self.listed[number].digest.partition(":")[0]

    def _digest(self, number: int, blocks: Blocks) -> RunningDigest:
        return RunningDigest(self._path(number), blocks, self._algorithm(number), self._held)

    def _unfinished(self, number: int) -> _Begun | None:
        """Returns a file, made or gone on with at the first use; None if it is finished."""
        with self._lock:
            if number in self._finished:
                return None
            if number not in self._begun:
                try:
                    blocks = self._begin(number)
                    self._begun[number] = _Begun(blocks, self._digest(number, blocks))
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
            with opened(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) as descriptor:
                os.ftruncate(descriptor, file.num_bytes)
            aside.rename(path)  # readers see it with its size and its blocks
            return blocks
