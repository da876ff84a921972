"""The digest of an unfinished file, carried on while its pieces are written.

What comes in order is digested from memory. What comes too early is held in memory until the bytes before it have come.
Everything else is read from the file again: what was there when the agent started, or could not be held. That follows
the pieces that come, so that little is left to be read at the end. Where readers may wait for pieces, it is left
until the file is whole. Of what had to give way, a digest stays in memory: a disk that changes it would else give a
digest of the file that all nodes agree on, since they get the same bytes.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from dlio.cached import cached_property
from dlio.errors import DigestError
from dlio.io import files, world
from dlio.io.files import Span
from dlio.stage.copies.blocks import Blocks
from dlio.stage.engine.writing import MOST_BYTES, PAGE_BYTES, Buffers, is_hole, opened, write_range

_READ_BYTES = MOST_BYTES
_MOST_GAP = 16 << 20  # bytes that are read again while others wait to add more
_FEW_HELD, MOST_HELD = 6, 32  # pieces, of up to `MOST_BYTES` each

_Piece = tuple[memoryview, Callable[[], None]]


class Held:
    """Pieces of all files that came too early; those that have longest to wait give way. For any number of threads.

    Attributes:
        buffers: memory for what is read again.

    Args:
        together: pieces of one file that come at a time, in any order: one from each node of a divided file.
        is_hurried: somebody waits until all files are here.
    """

    def __init__(self, together: int = 0, *, is_hurried: bool = True) -> None:
        self._most = min(_FEW_HELD + together, MOST_HELD)
        self.is_hurried, self.buffers = is_hurried, Buffers()
        self._lock = world.lock()
        self._pieces: dict[tuple[RunningDigest, int], _Piece] = {}

    def put(self, digest: RunningDigest, begin: int, data: memoryview, release: Callable[[], None]) -> None:
        """Holds a piece of a file; `release` is called if it gives way."""
        with self._lock:
            self._pieces[digest, begin] = data, release
            if len(self._pieces) > self._most:
                key = max(self._pieces, key=_waits)
                key[0].note(key[1], self._pieces[key][0])  # first: it may be read from the file once it is not held
                self._pieces.pop(key)[1]()

    def pop(self, digest: RunningDigest, begin: int) -> _Piece | None:
        """Returns the piece of a file that begins here, and what releases it; None if it has given way."""
        with self._lock:
            return self._pieces.pop((digest, begin), None)

    def first(self, digest: RunningDigest) -> int | None:
        """Returns where the first piece of a file begins; None if none is held."""
        with self._lock:
            return min((begin for each, begin in self._pieces if each is digest), default=None)

    def drop(self, digest: RunningDigest) -> None:
        """Releases the pieces of a file."""
        while (begin := self.first(digest)) is not None:
            if found := self.pop(digest, begin):
                found[1]()


def _waits(piece: tuple[RunningDigest, int]) -> int:
    """Returns how many bytes are to come before a piece counts."""
    digest, begin = piece
    return begin - digest.counted


class RunningDigest:
    """The digest of a file, of which the first bytes count already; for any number of threads.

    Attributes:
        counted: how many do.

    Args:
        path: the unfinished file.
        blocks: which of its blocks are present.
        algorithm: of the digest.
        held: where pieces wait that came too early.
    """

    def __init__(self, path: str, blocks: Blocks, algorithm: str, held: Held) -> None:
        self._path, self._blocks, self._held = path, blocks, held
        self._algorithm = algorithm
        self._lock = world.lock()
        self.counted = 0
        self._is_past_cache = False  # whether a piece of it was written so
        self._is_left = False  # the rest is read when the file is whole
        self._reads = held.is_hurried or blocks.present_bytes > 0  # as pieces come; else what readers got has gaps
        self._coming = dict[int, None]()  # where pieces begin that are being written
        self._noted: dict[int, tuple[int, str]] = {}  # by where pieces that are not held begin: where they end, digest
        self._piece: tuple[files.Hash, Span, str] | None = None  # one of these, a part of which was read again
        self._damaged: Span | None = None  # was not read as it was written
        self._advance: Callable[[], None] = lambda: None

    @contextmanager
    def writing(self, begin: int, *, is_cached: bool) -> Iterator[None]:
        """Until a piece that is written here is added, it is not read from the file, though its blocks may count."""
        self._is_past_cache = self._is_past_cache or not is_cached
        self._coming[begin] = None
        try:
            yield
        except BaseException:
            self._coming.pop(begin, None)
            raise

    def add(self, begin: int, data: memoryview, release: Callable[[], None]) -> None:
        """Adds a piece that was written, whose blocks count as present; `release` is called once `data` is not used."""
        with self._lock, suppress(OSError):  # which is raised by `whole`
            self._coming.pop(begin, None)
            if not self._is_left and begin >= self.counted:
                if not self._reaches(begin):
                    self._held.put(self, begin, data, release)
                    return
                self._count(data)
                self._count_held()
        release()

    def note(self, begin: int, data: memoryview) -> None:
        """Notes what was written, to compare it with what is read again."""
        self._noted[begin] = begin + len(data), files.digest_bytes(data)

    def end(self) -> None:
        """Releases what is held, and holds nothing more."""
        with self._lock:
            self._leave()

    def _leave(self) -> None:
        """Leaves what does not count yet until the file is whole."""
        self._is_left = True
        self._held.drop(self)

    def whole(self, advance: Callable[[], None] = lambda: None) -> str:
        """Returns `algorithm:hex` of the whole file; `advance` is called while it is read.

        Raises:
            DigestError: a part of it is not what was written.
            StorageError: it cannot be read.
        """
        with self._lock, files.storage_errors("read", self._path):
            self._reads, self._advance = True, advance
            self._count_held()
            self._read_up_to(self._blocks.num_bytes)
            self._leave()
        if self._damaged:
            begin, end = self._damaged
            raise DigestError(
                f"{self._path}: bytes {begin} to {end} are not what was written there: the disk or the memory of this "
                "node has changed them; stage again, and if that does not help, use another folder"
            )
        return f"{self._algorithm}:{self._hash.hexdigest()}"

    @cached_property
    def _hash(self) -> files.Hash:
        return files.new_hash(self._algorithm)

    def _count(self, data: memoryview) -> None:
        self._hash.update(data)
        self.counted += len(data)

    def _count_held(self) -> None:
        """Counts the held pieces, as far as all bytes before them are present."""
        while (first := self._held.first(self)) is not None and self._reaches(first):
            if found := self._held.pop(self, first):
                if first == self.counted:  # else it was read from the file
                    self._count(found[0])
                found[1]()

    def _reaches(self, begin: int) -> bool:
        """Returns whether all bytes before `begin` count, after reading some of those that are in the file already."""
        if begin > self.counted and self._reads:
            coming = [each for each in tuple(self._coming) if each >= self.counted]
            most = min(begin, self.counted + _MOST_GAP, *coming)
            self._read_up_to(next((absent for absent, _ in self._blocks.missing(self.counted, most)), most))
        return begin <= self.counted

    def _read_up_to(self, end: int) -> None:
        """Counts the bytes of the file up to `end`, or to its own end if it has shrunk; raises OSError."""
        flags = [os.O_RDONLY | os.O_DIRECT] if self._is_past_cache else []
        for each in (*flags, os.O_RDONLY):
            try:
                self._read(end, each)
                return
            except OSError as error:
                if error.errno != errno.EINVAL or each == os.O_RDONLY:  # else the file system has none but its cache
                    raise

    def _read(self, end: int, flags: int) -> None:
        if self.counted >= end:
            return
        buffer = self._held.buffers.take()
        try:
            with opened(self._path, flags) as descriptor:
                while left := min(end, self._next()) - self.counted:
                    rest = buffer[: min(-(-left // PAGE_BYTES) * PAGE_BYTES, _READ_BYTES)]
                    if not (count := world.preadv(descriptor, [rest], self.counted)):
                        return
                    self._compare(rest[: min(count, left)])
                    self._advance()
        finally:
            self._held.buffers.give_back(buffer)

    def _next(self) -> int:
        """Returns where a piece that was noted ends, or the next one begins."""
        if noted := self._noted.pop(self.counted, None):
            self._piece = files.new_hash(files.DEFAULT_DIGEST), (self.counted, noted[0]), noted[1]
        if self._piece and self.counted < (end := self._piece[1][1]):
            return end
        return min((begin for begin in tuple(self._noted) if begin > self.counted), default=self._blocks.num_bytes)

    def _compare(self, data: memoryview) -> None:
        """Counts what was read again, and compares a piece that was noted once all of it is."""
        self._count(data)
        if self._piece:
            running, (begin, end), digest = self._piece
            running.update(data)
            if self.counted >= end:
                self._piece = None
                if digest != f"{files.DEFAULT_DIGEST}:{running.hexdigest()}":
                    self._damaged = begin, end


@dataclass(slots=True)
class Begun:
    """An unfinished file; a sparse one has zeros where nothing was written, and `last_bytes` are what was written."""

    blocks: Blocks
    digest: RunningDigest
    is_sparse: bool
    last_bytes: bytes = b""

    def write(self, path: str, begin: int, data: memoryview, *, is_cached: bool) -> None:
        """Writes a range, then notes that it is present; raises OSError."""
        if not (self.is_sparse and is_hole(data)):
            try:
                write_range(path, begin, data, is_cached=is_cached)
            except OSError:
                self.is_sparse = False  # a part of it may be written
                raise
        self.blocks.set(begin, begin + len(data))
        if begin + len(data) == self.blocks.num_bytes:
            self.last_bytes = bytes(data[-PAGE_BYTES:])
