"""A new file whose digest is computed while it is written."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from dlio.io.files import DEFAULT_DIGEST, check_length, new_hash, storage_errors

COPIED_BYTES = 16 << 10  # below this, one more memcpy costs less than one more write (benchmarks/pack.py)
CACHED_BYTES = 256 << 10  # fits a core's second-level cache, so that digesting reads from there


class DigestingFile:
    """A new binary file, or a place in an existing one, with the digest of what is appended; not thread-safe.

    Small pieces are collected, and must not change any more; a large one is digested and written with them at once,
    without a copy.
    """

    def __init__(self, path: Path, algorithm: str = DEFAULT_DIGEST, *, begin: int | None = None) -> None:
        """Creates the file at `path`, or opens it to write from the byte `begin` on; raises StorageError."""
        self.path = path
        self._algorithm = algorithm
        self._hash = new_hash(algorithm)
        self._flushed = 0
        self._pending: list[bytes | bytearray | memoryview] = []
        self._pending_bytes = 0
        self._is_new = begin is None
        flags = os.O_CREAT | os.O_EXCL | os.O_CLOEXEC if self._is_new else os.O_CLOEXEC
        with storage_errors("create" if self._is_new else "open", path):
            self._descriptor: int | None = os.open(path, os.O_WRONLY | flags, 0o666)
            os.lseek(self._descriptor, begin or 0, os.SEEK_SET)

    def write(self, data: bytes | bytearray | memoryview, /) -> int:
        """Appends `data` and returns its size in bytes; raises as `writelines`."""
        num_bytes = len(data)
        if num_bytes < COPIED_BYTES and self._pending_bytes < CACHED_BYTES:
            self._pending.append(data)
            self._pending_bytes += num_bytes
        else:
            self.writelines((data,))
        return num_bytes

    def writelines(self, parts: Iterable[bytes | bytearray | memoryview], /) -> None:
        """Appends `parts`, one after the other.

        Raises:
            StorageError: the file system refused, now or what earlier calls have left to write.
        """
        for part in parts:
            if len(part) < COPIED_BYTES:
                self._pending.append(part)
                self._pending_bytes += len(part)
            else:
                self._flush(part)
        if self._pending_bytes >= CACHED_BYTES:
            self._flush()

    def _flush(self, data: bytes | bytearray | memoryview = b"") -> None:
        pending = b"".join(self._pending)
        self._pending, self._pending_bytes = [], 0
        self._hash.update(pending)
        self._hash.update(data)
        num_bytes = len(pending) + len(data)
        with storage_errors("write", self.path):
            if self._descriptor is None:
                raise ValueError(f"{self.path} is closed")
            begun = self._flushed
            self._flushed += os.writev(self._descriptor, (pending, data))
            while (written := self._flushed - begun) < num_bytes:  # an almost full disk, or a signal, takes a part
                left = memoryview(pending)[written:], memoryview(data)[max(0, written - len(pending)) :]
                self._flushed += os.writev(self._descriptor, left)

    def tell(self) -> int:
        """Returns the size so far, in bytes."""
        return self._flushed + self._pending_bytes

    def close(self) -> None:
        """Writes what is left and closes; may be called twice.

        Raises:
            StorageError: the file system refused.
        """
        if self._descriptor is None:
            return
        try:
            if self._pending:
                self._flush()
            with storage_errors("write", self.path):
                if self._is_new:
                    check_length(self.path, self._descriptor, self._flushed)
        finally:
            descriptor, self._descriptor = self._descriptor, None
            with storage_errors("write", self.path):
                os.close(descriptor)

    @property
    def digest(self) -> str:
        """`algorithm:hex` of what was appended, once the file is closed."""
        return f"{self._algorithm}:{self._hash.hexdigest()}"
