"""What a ring of nodes needs to write its files: counts, names, and blocks that are appended."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from io import FileIO
from pathlib import Path
from typing import IO

from dlio.io import files
from dlio.stage.cache.access import Access


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


def append_block(target: IO[bytes] | FileIO, block: memoryview) -> None:
    """Appends a block to a file opened for appending; a block of zeros becomes a hole, as in a sparse LMDB file."""
    if not block[0] and not block[-1] and block.tobytes() == bytes(len(block)):
        end = target.seek(0, os.SEEK_END) + len(block)
        os.ftruncate(target.fileno(), end)
        return
    while block:
        block = block[target.write(block) :]
