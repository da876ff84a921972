"""A file that grows by appending, past the page cache where the file system can.

Copying into fresh pages of the cache costs more than all else that a node of a broadcast does (docs/performance.md). A
file opened with O_DIRECT takes whole pages, out of memory that begins at one: so bytes are gathered in a buffer, and
what is left of the last page waits for more, or for the file's end.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
from pathlib import Path

from dlio.stage.planning.placement import BLOCK_BYTES
from dlio.stage.transfer.copy import append_block

PAGE_BYTES = mmap.PAGESIZE
_SYNC_BYTES = 256 << 20  # seconds even on a slow disk, and many times the blocks under way


def page_buffer() -> memoryview:
    """Returns memory for the blocks that are written to new files by one thread, one after the other."""
    return memoryview(mmap.mmap(-1, BLOCK_BYTES + PAGE_BYTES, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))


class NewFile:
    """An empty file at `path`, to which one thread at a time appends.

    Raises:
        OSError: it cannot be made; and so do all methods where it cannot be written.
    """

    def __init__(self, path: Path, buffer: memoryview) -> None:
        self.path = path
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        self._file = open(_opened(path), "ab", buffering=0)  # noqa: SIM115  closed by `close`
        self._buffer, self._rest = buffer, b""
        self._end = self._synced = 0

    def append(self, piece: memoryview) -> None:
        """Appends a piece of at most `BLOCK_BYTES`."""
        start, total = len(self._rest), len(self._rest) + len(piece)
        whole = total - total % PAGE_BYTES
        self._buffer[:start] = self._rest
        self._buffer[start:total] = piece
        if whole:
            self._write(self._buffer[:whole])
            self._bring_to_disk(whole)
        self._rest = bytes(self._buffer[whole:total])

    def _write(self, block: memoryview) -> None:
        """Appends a block; through the page cache from where on the file system will not take it otherwise."""
        try:
            append_block(self._file, block)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            self._use_page_cache()
            append_block(self._file, block[os.fstat(self._file.fileno()).st_size - self._end :])

    def _use_page_cache(self) -> None:
        fcntl.fcntl(self._file, fcntl.F_SETFL, fcntl.fcntl(self._file, fcntl.F_GETFL) & ~os.O_DIRECT)

    def _bring_to_disk(self, num_bytes: int) -> None:
        """Has what was just appended brought to the disk where it went to the page cache, and waits now and then.

        Else a large file's last fsync would take longer than a node may be silent. The advice starts the writing; what
        is not on the disk yet stays in the page cache.
        """
        os.posix_fadvise(self._file.fileno(), self._end, num_bytes, os.POSIX_FADV_DONTNEED)
        self._end += num_bytes
        if self._end - self._synced >= _SYNC_BYTES:
            os.fdatasync(self._file.fileno())
            self._synced = self._end

    def close(self) -> None:
        """Appends what is left of the last page, and brings all to the disk."""
        with self._file as file:
            if self._rest:
                self._use_page_cache()
                append_block(file, memoryview(self._rest))
            os.fsync(file.fileno())

    def abandon(self) -> None:
        """Closes the file as it is: on a full disk its room is free only then, though its name is gone."""
        self._file.close()


def _opened(path: Path) -> int:
    """Returns the descriptor of a new file, without O_DIRECT where the file system refuses that."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    try:
        return os.open(path, flags | os.O_DIRECT, 0o666)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return os.open(path, flags, 0o666)
