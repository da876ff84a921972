"""Copying files: large sequential blocks, several files at a time, digests taken as the bytes pass.

A file grows aside by appending, so that its size is its progress: after a crash its bytes so far are digested again
where they lie, and only the rest is read from the source.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import IO

from dlio import files
from dlio.errors import DigestError
from dlio.manifest import File
from dlio.stage.access import Access
from dlio.stage.plan import BLOCK_BYTES
from dlio.stage.source import Source, rest_of

# Eight files at once hide a latency of some ms per read; with 4 MiB blocks that is 32 MiB of buffers.
THREADS = 8


class StoppedError(Exception):
    """Another file of the same copy failed; never leaves `copy_files`."""


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


@dataclass(frozen=True, slots=True)
class Copying:
    """Where files are copied to.

    Attributes:
        aside: the folder where they grow.
        final: the folder where they get their names.
        access: tells who may read a file under its name.
        create: makes a file aside before its first byte, where a plain one will not do.
    """

    aside: Path
    final: Path
    access: Callable[[File], Access]
    create: Callable[[Path, File], None] | None = None


def copy_files(source: Source, target: Copying, wanted: Sequence[File], tally: Tally) -> None:
    """Copies `wanted` from `source`, several at once.

    A file gets its final name as soon as it is verified and on the disk; the folders' entries are not synced.

    Raises:
        DigestError: a file's content is not what its digest says.
        StorageError: the source cannot be read, or changed meanwhile; the destination cannot be written.
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
    with ThreadPoolExecutor(threads, thread_name_prefix="dlio-copy") as pool:
        running = [pool.submit(work) for _ in range(threads)]
        try:
            for thread in running:
                thread.result()
        except BaseException:
            tally.stop.set()
            raise


def _next(queue: Iterator[File], lock: threading.Lock) -> File | None:
    with lock:
        return next(queue, None)


def _copy_and_name(source: Source, target: Copying, file: File, buffer: bytearray, tally: Tally) -> None:
    """Copies one file aside and gives it its final name.

    Raises:
        DigestError, StorageError: as `copy_files` says.
    """
    aside, final = target.aside / file.name, target.final / file.name
    if "/" in file.name:
        with files.storage_errors("create", aside):
            aside.parent.mkdir(parents=True, exist_ok=True)
    if target.create and not aside.exists():
        target.create(aside, file)
    _copy_one(source, aside, file, buffer, tally)
    give_name(aside, final, target.access(file))


def give_name(aside: Path, final: Path, access: Access) -> None:
    """Gives a file that is whole its final name, and to others the access to it.

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


def _copy_one(source: Source, aside: Path, file: File, buffer: bytearray, tally: Tally) -> None:
    """Copies one file; what a dead copier left of it is kept if it proves right, else copied once more from the start.

    Raises:
        DigestError, StorageError: as `copy_files` says.
    """
    with files.storage_errors("look at", aside):
        is_begun = aside.exists() and aside.stat().st_size > 0
    if is_begun:
        with suppress(DigestError):
            return _append(source, aside, file, buffer, tally)
    return _append(source, aside, file, buffer, tally)


def _append(source: Source, aside: Path, file: File, buffer: bytearray, tally: Tally) -> None:
    """Brings `aside` from its present size to the whole file.

    Raises:
        DigestError, StorageError: as `copy_files` says; a file that proves wrong is emptied.
    """
    algorithm = file.digest.partition(":")[0]
    digest = files.new_hash(algorithm)
    with files.storage_errors("write", aside), aside.open("ab+", buffering=0) as target:
        target.seek(0)
        for block in rest_of(target, buffer):
            digest.update(block)
        for block in source.blocks(file, target.tell(), buffer):
            digest.update(block)
            append_block(target, block)
            tally.count(read=len(block), written=len(block))
        os.fsync(target.fileno())
    found = f"{algorithm}:{digest.hexdigest()}"
    if found != file.digest:
        with files.storage_errors("write", aside):
            os.truncate(aside, 0)  # not unlinked: it may have a layout
        name = source.name_of(file)
        raise DigestError(f"{name} is damaged: expected the digest {file.digest}, found {found}: pack it anew")


def append_block(target: IO[bytes] | FileIO, block: memoryview) -> None:
    """Appends a block to a file opened for appending; a block of zeros becomes a hole, as in a sparse LMDB file."""
    if not block[0] and not block[-1] and block.tobytes() == bytes(len(block)):
        end = target.seek(0, os.SEEK_END) + len(block)
        os.ftruncate(target.fileno(), end)
        return
    while block:
        block = block[target.write(block) :]
