"""A RandomAccessFile as a Python file, for libraries that read by themselves."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from dlio.io.random_access import RandomAccessFile

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer


class FileObject(io.RawIOBase):
    """Reads a RandomAccessFile, which its owner closes; used by one thread at a time. Raises as RandomAccessFile."""

    def __init__(self, file: RandomAccessFile) -> None:
        self._file = file
        self._position = 0

    def readable(self) -> bool:
        """Returns True."""
        return True

    def seekable(self) -> bool:
        """Returns True."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Moves to an offset from the start, the position or the end."""
        begin = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._file.num_bytes}[whence]
        self._position = begin + offset
        return self._position

    def tell(self) -> int:
        """Returns the position."""
        return self._position

    def readinto(self, buffer: WriteableBuffer) -> int:
        """Fills the buffer as far as the file goes."""
        target = memoryview(buffer).cast("B")
        count = max(0, min(len(target), self._file.num_bytes - self._position))
        target[:count] = self._file.read(self._position, count) if count else b""
        self._position += count
        return count
