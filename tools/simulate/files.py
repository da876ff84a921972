"""Files of a simulation that nothing happens to: real ones, which bear virtual times."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tools.simulate.clock import EPOCH


class Files:
    """The files of one node, and those that all nodes see.

    What a file system stamps on a file is its real time. So each call that creates, writes or touches one stamps the
    virtual time on it instead, by the clock of the machine that the file lies on.

    Args:
        root: the folder of the node's own disk.
        local: returns the time of day of this node, in ns since 1970.
        shared: returns that of the server of all other files.
    """

    def __init__(self, root: Path, local: Callable[[], int], shared: Callable[[], int]) -> None:
        self._root, self._local, self._shared = f"{root}/", local, shared

    def stamp(self, descriptor: int) -> None:
        """Stamps the present time on an open file."""
        is_local = os.readlink(f"/proc/self/fd/{descriptor}").startswith(self._root)  # noqa: PTH115  often
        now = self._local() if is_local else self._shared()
        os.utime(descriptor, ns=(now, now))

    def open(self, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        """As `os.open`."""
        descriptor = os.open(path, flags, mode, dir_fd=dir_fd)
        if flags & (os.O_CREAT | os.O_TRUNC):
            self.stamp(descriptor)
        return descriptor

    def pread(self, descriptor: int, count: int, offset: int) -> bytes:
        """As `os.pread`."""
        return os.pread(descriptor, count, offset)

    def preadv(self, descriptor: int, buffers: Sequence[Any], offset: int) -> int:
        """As `os.preadv`."""
        return os.preadv(descriptor, buffers, offset)

    def pwrite(self, descriptor: int, data: Any, offset: int) -> int:
        """As `os.pwrite`."""
        count = os.pwrite(descriptor, data, offset)
        self.stamp(descriptor)
        return count

    def fsync(self, descriptor: int) -> None:
        """As `os.fsync`: what is written lies in memory."""

    def replace(
        self, source: Any, target: Any, *, src_dir_fd: int | None = None, dst_dir_fd: int | None = None
    ) -> None:
        """As `os.replace`."""
        os.replace(source, target, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)

    def touch(self, path: Any, *, dir_fd: int | None = None) -> None:
        """As `World.touch`."""
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=dir_fd)
        try:
            self.stamp(descriptor)
        finally:
            os.close(descriptor)

    def changed(self, status: os.stat_result) -> float:
        """As `World.changed`; what was made by other calls is as good as new."""
        return (status.st_mtime_ns if status.st_mtime_ns >= EPOCH // 2 + EPOCH // 4 else self._local()) / 1e9
