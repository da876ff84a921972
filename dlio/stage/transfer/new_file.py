"""A file that grows by appending, past the page cache if the file system can.

Copying into fresh pages of the cache costs more than all else that a node of a broadcast does (benchmarks/NOTES.md). A
file opened with O_DIRECT takes whole pages from page-aligned memory. So bytes are gathered in a buffer, and the rest of
the last page waits for more bytes, or for the file's end.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
from pathlib import Path

from dlio.io import files
from dlio.stage.planning.placement import BLOCK_BYTES
from dlio.stage.transfer.copy import append_block

PAGE_BYTES = mmap.PAGESIZE
_SYNC_BYTES = 256 << 20  # seconds even on a slow disk, and many times the blocks under way


def page_buffer() -> memoryview:
    """Returns page-aligned memory for blocks that one thread writes to new files."""
    return memoryview(mmap.mmap(-1, BLOCK_BYTES + PAGE_BYTES, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))


class NewFile:
    """An empty file at `path`, to which one thread at a time appends.

    Raises:
        OSError: it cannot be made; the methods raise it if the file cannot be written.
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
        """Appends a block; uses the page cache from the offset on at which the file system refuses O_DIRECT."""
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
        """Starts writing what was just appended to the page cache, and waits for it now and then.

        Else the last fsync of a large file would take longer than a node may be silent. The advice starts the write;
        what is not on the disk yet stays in the page cache.
        """
        os.posix_fadvise(self._file.fileno(), self._end, num_bytes, os.POSIX_FADV_DONTNEED)
        self._end += num_bytes
        if self._end - self._synced >= _SYNC_BYTES:
            files.sync_written(self._file.fileno(), data_only=True)
            self._synced = self._end

    def close(self) -> None:
        """Appends the rest of the last page, and syncs the file."""
        with self._file as file:
            if self._rest:
                self._use_page_cache()
                append_block(file, memoryview(self._rest))
            files.check_length(self.path, file.fileno(), self._end + len(self._rest))
            files.sync_written(file.fileno())

    def abandon(self) -> None:
        """Closes the file as it is; only then is the room of an unlinked file free."""
        self._file.close()


def _opened(path: Path) -> int:
    """Returns the descriptor of a new file; without O_DIRECT if the file system refuses it."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    try:
        return os.open(path, flags | os.O_DIRECT, 0o666)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return os.open(path, flags, 0o666)
