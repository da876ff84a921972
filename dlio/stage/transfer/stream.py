"""The two ends of a broadcast on one node: blocks read from its own files, and blocks written to all files.

A block starts with a header of three integers, (failed, length, left), and goes around the ring unchanged. `left` is
the number of bytes that the node which read the block still had to write, so all nodes see the progress of each.
"""

from __future__ import annotations

import queue
import struct
import threading
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path

from dlio.dataset.manifest import File
from dlio.errors import DigestError
from dlio.io import files, trace
from dlio.stage.cache.access import Access
from dlio.stage.cache.folder import StagedFolder
from dlio.stage.planning.placement import BLOCK_BYTES
from dlio.stage.transfer.copy import Tally, give_name
from dlio.stage.transfer.new_file import NewFile
from dlio.stage.transfer.source import StagingSource

_HEADER = struct.Struct("=qqq")
_LEFT_OFFSET = struct.calcsize("=qq")
_REASON_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Lacking:
    """What one node lacks before a broadcast.

    Attributes:
        folder: the staged folder on this node.
        missing: the files that this process is to write.
        aside: the folder for unfinished files; None if this process writes nothing.
        access: who may read the files, by name.
    """

    folder: StagedFolder
    missing: frozenset[File] = frozenset()
    aside: Path | None = None
    access: Mapping[str, Access] = field(default_factory=dict)


@dataclass(slots=True)
class Block:
    """A buffer with a header; it returns to the pool once each of its users has released it."""

    pool: queue.Queue[Block]
    data: bytearray = field(default_factory=lambda: bytearray(_HEADER.size + BLOCK_BYTES))
    users: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def release(self) -> None:
        """Ends one use."""
        with self.lock:
            self.users -= 1
            if self.users == 0:
                self.pool.put(self)

    def seal(self, length: int) -> None:
        """Writes the header of a block that holds `length` bytes of a stream."""
        _HEADER.pack_into(self.data, 0, 0, length, 0)

    @property
    def left(self) -> int:
        """Bytes that the node which read this block still had to write."""
        return int(_HEADER.unpack_from(self.data)[2])

    @left.setter
    def left(self, num_bytes: int) -> None:
        struct.pack_into("=q", self.data, _LEFT_OFFSET, num_bytes)

    def fail(self, reason: str) -> None:
        """Turns the block into a message to all nodes that this node has failed."""
        text = reason.encode()[:_REASON_BYTES]
        self.data[_HEADER.size : _HEADER.size + len(text)] = text
        _HEADER.pack_into(self.data, 0, 1, len(text), 0)

    @property
    def failed(self) -> bool:
        """Whether the node that read this block has failed."""
        return bool(_HEADER.unpack_from(self.data)[0])

    @property
    def payload(self) -> memoryview:
        """The bytes of the stream, or the reason of the failure."""
        return memoryview(self.data)[_HEADER.size : _HEADER.size + _HEADER.unpack_from(self.data)[1]]


class OwnStream:
    """The files that one node reads, as one stream cut into blocks, which several threads may read in any order."""

    def __init__(self, source: StagingSource, files_in_order: Sequence[File]) -> None:
        self._source, self._files = source, [file for file in files_in_order if file.num_bytes]
        self._ends = list(accumulate(file.num_bytes for file in self._files))

    @property
    def num_blocks(self) -> int:
        """The number of blocks; the last may not be full."""
        return -(-self._ends[-1] // BLOCK_BYTES) if self._ends else 0

    def fill(self, block: Block, number: int) -> int:
        """Reads block `number` of the stream into `block`, seals it, and returns its length in bytes.

        Raises:
            StorageError: a file cannot be read, is not of the manifest's size, or changed since its first block.
        """
        position, end = number * BLOCK_BYTES, min((number + 1) * BLOCK_BYTES, self._ends[-1])
        target = memoryview(block.data)[_HEADER.size :]
        index = bisect_right(self._ends, position)
        while position < end:
            stop = min(end, self._ends[index])
            file = self._files[index]
            with trace.span("read source", "stage", file.name):
                self._source.read_range(
                    file, position - (self._ends[index] - file.num_bytes), target[: stop - position]
                )
            target, position, index = target[stop - position :], stop, index + 1
        block.seal(end - number * BLOCK_BYTES)
        return end - number * BLOCK_BYTES


class Sink:
    """Writes those of one stream's files that this node lacks; used by one thread at a time."""

    def __init__(self, stream: Sequence[File], lacking: Lacking, tally: Tally, buffer: memoryview) -> None:
        self._files = iter(stream)
        self._lacking, self._tally, self._buffer = lacking, tally, buffer
        self._file: File | None = None
        self._left = 0
        self._target: NewFile | None = None
        self._digest = files.new_hash(files.DEFAULT_DIGEST)
        self._next()

    def write(self, data: memoryview) -> None:
        """Writes the stream's next bytes; empty files that are due are made as well.

        Raises:
            DigestError, StorageError: as `dlio.stage.transfer.copy.copy_files`.
        """
        while self._file is not None and (data or not self._left):
            piece, data = data[: self._left], data[self._left :]
            self._left -= len(piece)
            if self._target is not None and piece:
                path = self._target.path
                with files.storage_errors("write", path), trace.span("write copy", "stage", path.name):
                    self._target.append(piece)
                self._digest.update(piece)
                self._tally.count(read=0, written=len(piece))
            if not self._left:
                self._close(self._file)
                self._next()

    def abandon(self) -> None:
        """Closes the unfinished file, if any."""
        if self._target is not None:
            self._target.abandon()

    def _next(self) -> None:
        """Turns to the next file, and opens it if this node lacks it."""
        self._file = next(self._files, None)
        if self._file is None:
            return
        self._left = self._file.num_bytes
        if self._lacking.aside is not None and self._file in self._lacking.missing:
            path = self._lacking.aside / self._file.name
            with files.storage_errors("create", path):
                self._target = NewFile(path, self._buffer)
            self._digest = files.new_hash(self._file.digest.partition(":")[0])

    def _close(self, file: File) -> None:
        """Verifies the file and gives it its name."""
        if self._target is None:
            return
        path, final = self._target.path, self._lacking.folder.path / file.name
        with files.storage_errors("write", path):
            self._target.close()
        self._target = None
        found = f"{file.digest.partition(':')[0]}:{self._digest.hexdigest()}"
        if found != file.digest:
            raise DigestError(f"{file.name} is damaged at the source: expected the digest {file.digest}, found {found}")
        give_name(path, final, self._lacking.access[file.name])
