"""The rounds of a broadcast on one node: a thread that reads ahead, the ring, and threads that write.

A block starts with a header of two integers, (failed, length): a node that fails says so in its next block, so every
node hears of it in the same round and all stop together.
"""

from __future__ import annotations

import os
import queue
import struct
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from dlio import files
from dlio.errors import DigestError, DlioError, StorageError
from dlio.manifest import File
from dlio.stage.copy import Tally, append_block, read_source
from dlio.stage.folder import StagedFolder
from dlio.stage.ring import Ring

BLOCK_BYTES = 4 << 20
_HEADER = struct.Struct("=qq")
_READ_AHEAD = 4
_WRITERS = 2
_POOL = 20  # blocks: read ahead, under way, and waiting to be written; 80 MiB


@dataclass(frozen=True, slots=True)
class Place:
    """What one node brings to a broadcast.

    Attributes:
        folder: the staged folder on this node.
        missing: the files that it lacks, and this process may write.
        aside: the folder for unfinished files; None where there is nothing to write.
    """

    folder: StagedFolder
    missing: frozenset[File]
    aside: Path | None


@dataclass(slots=True)
class Block:
    """A buffer with a header, given back to the pool when each of its users has released it."""

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

    def seal(self, length: int, failed: bool = False) -> None:
        """Writes the header."""
        _HEADER.pack_into(self.data, 0, failed, length)

    @property
    def failed(self) -> bool:
        """Whether the node that read this block gave up."""
        return bool(_HEADER.unpack_from(self.data)[0])

    @property
    def payload(self) -> memoryview:
        """The bytes of the stream, or the reason of the failure."""
        return memoryview(self.data)[_HEADER.size : _HEADER.size + _HEADER.unpack_from(self.data)[1]]


class Passing:
    """One node's part in a broadcast.

    Args:
        source: the data set's folder at the source.
        ring: the nodes.
        streams: the files that each node reads, in order.
        place: what this node lacks.
        tally: counts the bytes read and written here.

    Attributes:
        problem: why this node failed; None where it did not.
    """

    def __init__(self, source: Path, ring: Ring, streams: Sequence[Sequence[File]], place: Place, tally: Tally) -> None:
        self._source, self._ring, self._streams, self._tally = source, ring, streams, tally
        self._pool: queue.Queue[Block] = queue.Queue()
        for _ in range(_POOL):
            self._pool.put(Block(self._pool))
        self._ahead: queue.Queue[Block] = queue.Queue(_READ_AHEAD)
        self._sinks = [Sink(stream, place, tally) for stream in streams]
        self._to_write: list[queue.Queue[tuple[int, Block] | None]] = [queue.Queue() for _ in range(_WRITERS)]
        self.problem: Exception | None = None

    def run(self) -> None:
        """Carries out all rounds; a failure here that came after the last of them is left in `problem`.

        Raises:
            StorageError: a node failed in the middle, or is lost.
        """
        rounds = max(-(-sum(file.num_bytes for file in stream) // BLOCK_BYTES) for stream in self._streams)
        threads = [threading.Thread(target=self._read, args=(rounds,), name="dlio-read", daemon=True)]
        threads += [threading.Thread(target=self._write, args=(jobs,), name="dlio-write") for jobs in self._to_write]
        for thread in threads:
            thread.start()
        try:
            for _ in range(rounds):
                self._round()
        finally:
            for jobs in self._to_write:
                jobs.put(None)
            for thread in threads[1:]:
                thread.join()
        self._finish_sinks()

    def _round(self) -> None:
        """Takes the next block of this node's own stream, and passes N blocks on around the ring."""
        ring, failures = self._ring, []
        block = self._ahead.get()
        if self.problem and not block.failed:
            _fail(block, str(self.problem))
        for step in range(ring.size):
            origin = (ring.rank - step) % ring.size
            if block.failed:
                failures.append((origin, bytes(block.payload).decode(errors="replace")))
            block.users = 2
            last = step == ring.size - 1
            coming = None if last else self._pool.get()
            self._to_write[origin % _WRITERS].put((origin, block))
            if coming is not None:
                ring.shift(block.data, coming.data)
            block.release()
            block = coming or block
        if failures and self.problem:
            raise self.problem
        if failures:
            raise StorageError(f"staging failed on node {failures[0][0]} of {ring.size}: {failures[0][1]}")

    def _read(self, rounds: int) -> None:
        """Puts this node's own stream into the queue, in blocks, then empty ones until the last round."""
        try:
            for block in self._own_blocks():
                self._ahead.put(block)
                rounds -= 1
        except Exception as error:  # whatever it is, the other nodes must hear of it
            self.problem = self.problem or error
        for _ in range(rounds):
            block = self._pool.get()
            block.seal(0)
            self._ahead.put(block)

    def _own_blocks(self) -> Iterator[Block]:
        """Yields the files that this node reads, as one stream cut into blocks."""
        buffer = bytearray(BLOCK_BYTES)
        block, filled = self._pool.get(), 0
        for file in self._streams[self._ring.rank]:
            for piece in read_source(self._source / file.name, 0, file, buffer):
                self._tally.count(read=len(piece), written=0)
                while piece:
                    taken = min(len(piece), BLOCK_BYTES - filled)
                    start = _HEADER.size + filled
                    block.data[start : start + taken] = piece[:taken]
                    piece, filled = piece[taken:], filled + taken
                    if filled == BLOCK_BYTES:
                        block.seal(filled)
                        yield block
                        block, filled = self._pool.get(), 0
        block.seal(filled)
        if filled:
            yield block
        else:
            self._pool.put(block)

    def _write(self, jobs: queue.Queue[tuple[int, Block] | None]) -> None:
        while (job := jobs.get()) is not None:
            origin, block = job
            try:
                if not self.problem and not block.failed:
                    self._sinks[origin].write(block.payload)
            except Exception as error:  # whatever it is, the other nodes must hear of it
                self.problem = self.problem or error
            finally:
                block.release()

    def _finish_sinks(self) -> None:
        try:
            for sink in self._sinks:
                sink.write(memoryview(b""))
        except DlioError as error:
            self.problem = self.problem or error


def _fail(block: Block, problem: str) -> None:
    text = problem.encode()[:4096]
    block.data[_HEADER.size : _HEADER.size + len(text)] = text
    block.seal(len(text), failed=True)


class Sink:
    """Writes one stream's files, as far as this node lacks them; used by one thread at a time."""

    def __init__(self, stream: Sequence[File], place: Place, tally: Tally) -> None:
        self._files = iter(stream)
        self._place, self._tally = place, tally
        self._file: File | None = None
        self._left = 0
        self._target: IO[bytes] | None = None
        self._digest = files.new_hash(files.DEFAULT_DIGEST)
        self._next()

    def write(self, data: memoryview) -> None:
        """Takes the stream's next bytes; files of no bytes that are due are made as well.

        Raises:
            DigestError, StorageError: as `dlio.stage.copy.copy_files` says.
        """
        while self._file is not None and (data or not self._left):
            piece, data = data[: self._left], data[self._left :]
            self._left -= len(piece)
            if self._target is not None and piece:
                with files.storage_errors("write", Path(self._target.name)):
                    append_block(self._target, piece)
                self._digest.update(piece)
                self._tally.count(read=0, written=len(piece))
            if not self._left:
                self._close(self._file)
                self._next()

    def _next(self) -> None:
        """Turns to the next file, and opens it if it is lacked here."""
        self._file = next(self._files, None)
        if self._file is None:
            return
        self._left = self._file.num_bytes
        if self._place.aside is not None and self._file in self._place.missing:
            path = self._place.aside / self._file.name
            with files.storage_errors("create", path):
                path.parent.mkdir(parents=True, exist_ok=True)
                path.unlink(missing_ok=True)
                self._target = path.open("ab", buffering=0)
            self._digest = files.new_hash(self._file.digest.partition(":")[0])

    def _close(self, file: File) -> None:
        """Verifies the file and gives it its name."""
        if self._target is None:
            return
        path, final = Path(self._target.name), self._place.folder.path / file.name
        with files.storage_errors("write", path), self._target as target:
            os.fsync(target.fileno())
        self._target = None
        found = f"{file.digest.partition(':')[0]}:{self._digest.hexdigest()}"
        if found != file.digest:
            raise DigestError(f"{file.name} is damaged at the source: expected the digest {file.digest}, found {found}")
        with files.storage_errors("publish", final):
            final.parent.mkdir(parents=True, exist_ok=True)
            path.replace(final)
