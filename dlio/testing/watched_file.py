"""A file that a format writes to, which keeps what passes, or is full early."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from dlio import formats
from dlio.errors import StorageError


class WatchedFile:
    """A file of a writer: keeps what passes, and takes no more than `room` bytes."""

    def __init__(self, path: Path, room: int = 1 << 40) -> None:
        self.path, self.room, self.passed = path, room, bytearray()
        self.file = formats.open_plain(path)
        self.closed = False

    def write(self, data: bytes | bytearray | memoryview, /) -> int:
        if self.room < len(data):
            raise StorageError(28, f"cannot write {self.path}: no space")
        self.room -= len(data)
        self.passed += data
        return self.file.write(data)

    def writelines(self, parts: Iterable[bytes | bytearray | memoryview], /) -> None:
        for part in parts:
            self.write(part)

    def tell(self) -> int:
        return self.file.tell()

    def close(self) -> None:
        self.file.close()
        self.closed = True
