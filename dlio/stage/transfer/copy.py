"""Copies files in large sequential blocks, several files at a time, and digests them on the way.

A file grows aside by appending, so its size is its progress. After a crash the bytes written so far are digested again,
and only the rest is read from the source.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import IO

from dlio.dataset.manifest import File
from dlio.errors import DigestError
from dlio.io import files, trace
from dlio.io.threads import Threads
from dlio.stage.cache.access import Access
from dlio.stage.planning.placement import BLOCK_BYTES
from dlio.stage.transfer.source import StagingSource, rest_of

# Eight files at once hide a latency of some ms per read; with 4 MiB blocks that is 32 MiB of buffers.
THREADS = 8


class StoppedError(Exception):
    """Another file of the same copy has failed; caught in `copy_files`."""


class Tally:
    """Counts bytes over several threads and reports them.

    Attributes:
        read: bytes read from the source.
        written: bytes written to the copy, holes included.
    """

    def __init__(self, report: Callable[[int], None] | None = None) -> None:
        self.read = 0
        self.written = 0
        self.stop = threading.Event()
        self._report = report
        self._lock = threading.Lock()

    def count(self, *, read: int, written: int) -> None:
        """Counts bytes read from the source and written to the copy.

        Raises:
            StoppedError: the copy has failed elsewhere.
        """
        with self._lock:
            self.read += read
            self.written += written
            if self._report and written:
                self._report(written)
        if self.stop.is_set():
            raise StoppedError


#: Makes an unfinished file before its first byte.
Create = Callable[[Path, File], None]


@dataclass(frozen=True, slots=True)
class Copying:
    """The target of files that are copied.

    Attributes:
        aside: the folder of unfinished files.
        final: the folder of finished files.
        access: returns who may read a finished file.
        create: makes an unfinished file; None for a plain file.
    """

    aside: Path
    final: Path
    access: Callable[[File], Access]
    create: Create | None = None


def copy_files(source: StagingSource, target: Copying, wanted: Sequence[File], tally: Tally) -> None:
    """Copies `wanted` from `source`, several at once.

    A file gets its final name as soon as it is verified and on the disk; the folders' entries are not synced.

    Raises:
        DigestError: a file's content is not what its digest says.
        StorageError: the source cannot be read, or has changed meanwhile; the destination cannot be written.
    """
    queue, lock = iter(wanted), threading.Lock()

    def work() -> None:
        buffer = bytearray(BLOCK_BYTES)
        while (file := _next(queue, lock)) is not None and not tally.stop.is_set():
            try:
                _copy_and_name(source, target, file, buffer, tally)
            except StoppedError:
                return
            except BaseException:
                tally.stop.set()
                raise

    threads = max(1, min(THREADS, len(wanted)))
    with Threads(threads, "dlio-copy") as pool:
        try:
            pool.each(lambda _: work(), range(threads))
        except BaseException:
            tally.stop.set()
            raise


def _next(queue: Iterator[File], lock: threading.Lock) -> File | None:
    with lock:
        return next(queue, None)


def _copy_and_name(source: StagingSource, target: Copying, file: File, buffer: bytearray, tally: Tally) -> None:
    """Copies one file aside and gives it its final name; raises DigestError, StorageError."""
    aside, final = target.aside / file.name, target.final / file.name
    if "/" in file.name:
        with files.storage_errors("create", aside):
            aside.parent.mkdir(parents=True, exist_ok=True)
    if target.create and not aside.exists():
        target.create(aside, file)
    _copy_one(source, aside, file, buffer, tally)
    give_name(aside, final, target.access(file))


def give_name(aside: Path, final: Path, access: Access) -> None:
    """Gives a complete file its final name, and others access to it.

    Raises:
        StorageError: the file system refused.
    """
    with files.storage_errors("publish", final):
        access.give_file(aside)
        try:
            aside.replace(final)
        except FileNotFoundError:  # rather than to look each time: that takes as long as the rest
            final.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            aside.replace(final)


def _copy_one(source: StagingSource, aside: Path, file: File, buffer: bytearray, tally: Tally) -> None:
    """Copies one file; continues a dead process's file, and starts again if the digest is wrong then.

    Raises:
        DigestError, StorageError: as `copy_files`.
    """
    with files.storage_errors("look at", aside):
        is_begun = aside.exists() and aside.stat().st_size > 0
    if is_begun:
        with suppress(DigestError):
            return _append(source, aside, file, buffer, tally)
    return _append(source, aside, file, buffer, tally)


def _append(source: StagingSource, aside: Path, file: File, buffer: bytearray, tally: Tally) -> None:
    """Appends to `aside` until it is the whole file; raises DigestError, StorageError."""
    algorithm = file.digest.partition(":")[0]
    digest = files.new_hash(algorithm)
    with files.storage_errors("write", aside), aside.open("ab+", buffering=0) as target:
        target.seek(0)
        for block in rest_of(target, buffer):
            digest.update(block)
        # Held by no name, the blocks' file is closed as soon as this fails.
        for block in trace.each(source.blocks(file, target.tell(), buffer), "read source", "stage", file.name):
            digest.update(block)
            with trace.span("write copy", "stage", file.name):
                append_block(target, block)
            tally.count(read=len(block), written=len(block))
        files.sync_written(target.fileno())
        found = f"{algorithm}:{digest.hexdigest()}"
        if found == file.digest:
            return files.check_length(aside, target.fileno(), file.num_bytes)
        target.truncate(0)  # not unlinked, to keep its layout
        name = source.name_of(file)
        raise DigestError(f"{name} is damaged: expected the digest {file.digest}, found {found}: pack it again")


def append_block(target: IO[bytes] | FileIO, block: memoryview) -> None:
    """Appends a block to a file opened for appending; a block of zeros becomes a hole, as in a sparse LMDB file."""
    if not block[0] and not block[-1] and block.tobytes() == bytes(len(block)):
        end = target.seek(0, os.SEEK_END) + len(block)
        os.ftruncate(target.fileno(), end)
        return
    while block:
        block = block[target.write(block) :]
