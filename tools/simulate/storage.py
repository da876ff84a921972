"""The calls of `dlio.io.world` that concern files, for all disks of a simulation.

What the system stamps on a file is the real time. So each call that makes, writes or touches a file stamps the virtual
time on it, by the clock of the disk that it lies on.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tools.simulate.clock import EPOCH, Clock
from tools.simulate.disk import LOCAL, OPEN, READ, SYNC, WRITE, Disk, Speed
from tools.simulate.scheduler import Scheduler

NAME = "name"
_SPAN = EPOCH // 100  # four months: no clock is that wrong, and the real time is years later


class Call(NamedTuple):
    """A call that a task has made.

    Attributes:
        kind: READ, WRITE, SYNC or NAME.
        disk: where.
        path: of the file below the disk's root; of a rename, the new one.
        begin, end: the range that was read or written.
    """

    kind: str
    disk: Disk
    path: str
    begin: int = 0
    end: int = 0

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.rpartition("/")[2]


class Storage:
    """The calls; for the tasks of one scheduler.

    Args:
        scheduler: has the time.
        base: the folder of the folders of all disks.

    Attributes:
        disks: by the names of their folders in `base`.
        listeners: called after each READ, WRITE, SYNC and NAME (a rename).
    """

    def __init__(self, scheduler: Scheduler, base: Path) -> None:
        self.disks: dict[str, Disk] = {}
        self.listeners: list[Callable[[Call], object]] = []
        self._scheduler, self._base = scheduler, f"{base.resolve()}/"
        self._opened: dict[
            int, Disk
        ] = {}  # the disks of descriptors; a closed one is not used before it is opened again

    def add(self, name: str, clock: Clock, speed: Speed = LOCAL, *, keeps_track: bool = False) -> Disk:
        """Returns a new disk; see there. Its folder exists already or is made."""
        root = Path(self._base, name)
        root.mkdir(exist_ok=True)
        self.disks[name] = disk = Disk(self._scheduler, root, clock, speed, keeps_track=keeps_track)
        return disk

    def open(self, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        """As `os.open`; never past the page cache, which is not simulated."""
        self._scheduler.check()
        path = os.fspath(path)
        known = self._opened.get(dir_fd) if dir_fd is not None and path[:1] != "/" else None
        disk = known or self._of(_whole(path, dir_fd))
        if flags & os.O_DIRECTORY:
            disk.enter()
        else:
            disk.opens += 1
            disk.wait(OPEN)
        if disk.lags and not flags & (os.O_WRONLY | os.O_RDWR):
            descriptor = disk.opened(_whole(path, dir_fd))
            if descriptor is not None:
                return descriptor
        descriptor = os.open(path, flags & ~os.O_DIRECT, mode, dir_fd=dir_fd)
        self._opened[descriptor] = disk
        if flags & (os.O_CREAT | os.O_TRUNC):
            os.utime(descriptor, ns=disk.times())
        return descriptor

    def pread(self, descriptor: int, count: int, offset: int) -> bytes:
        """As `os.pread`."""
        buffer = bytearray(count)
        return bytes(buffer[: self.preadv(descriptor, [buffer], offset)])

    def preadv(self, descriptor: int, buffers: Sequence[Any], offset: int) -> int:
        """As `os.preadv`."""
        path = _path(descriptor)
        disk = self._of(path)
        first = memoryview(buffers[0])
        asked = disk.part(len(first))
        disk.wait(READ, asked)
        count = os.preadv(descriptor, [first[:asked]], offset)
        disk.spoil(first[:count])
        self._tell(READ, disk, path, offset, count)
        return count

    def pwrite(self, descriptor: int, data: Any, offset: int) -> int:
        """As `os.pwrite`; what is written may be seen before this returns."""
        disk = self._of(path := _path(descriptor))
        data = memoryview(data).cast("B")
        part = data[: disk.part(len(data))]
        disk.take_room(descriptor, offset, len(part))
        early = disk.early(len(part))
        os.pwrite(descriptor, part[:early], offset)
        disk.wait(WRITE, len(part))
        count = early + os.pwrite(descriptor, part[early:], offset + early)
        os.utime(descriptor, ns=disk.times())
        if disk.durable:
            disk.durable.written(descriptor, offset, count)
        self._tell(WRITE, disk, path, offset, count)
        return count

    def _tell(self, kind: str, disk: Disk, path: str, begin: int = 0, count: int = 0) -> None:
        call = Call(kind, disk, path[len(self._base) + len(disk.name) + 1 :], begin, begin + count)
        for listener in self.listeners:
            listener(call)

    def fsync(self, descriptor: int) -> None:
        """As `os.fsync`."""
        disk = self._of(path := _path(descriptor))
        try:
            disk.wait(SYNC)
        except OSError:
            if disk.durable:
                disk.durable.failed(descriptor)
            raise
        if disk.durable:
            disk.durable.synced(descriptor)
        self._tell(SYNC, disk, path)

    def replace(
        self, source: Any, target: Any, *, src_dir_fd: int | None = None, dst_dir_fd: int | None = None
    ) -> None:
        """As `os.replace`."""
        disk = self._of(whole := _whole(target, dst_dir_fd))
        disk.wait(OPEN)
        if disk.durable:
            disk.durable.replaces(_whole(source, src_dir_fd), whole)
        disk.replaces(whole)
        os.replace(source, target, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)
        self._tell(NAME, disk, whole)

    def names(self, folder: int) -> list[str]:
        """As `os.listdir`, of what the present task's node sees."""
        self._scheduler.check()
        path, found = _path(folder), os.listdir(folder)
        return self._of(path).listed(path, found)

    def touch(self, path: Any, *, dir_fd: int | None = None) -> None:
        """Sets a file's time to the present time of its disk."""
        disk = self._of(_whole(path, dir_fd))
        disk.wait(OPEN)
        os.utime(path, ns=disk.times(), dir_fd=dir_fd, follow_symlinks=False)

    def changed(self, status: os.stat_result) -> float:
        """Returns when a file was changed, in seconds since 1970; files that other calls made count as new."""
        is_virtual = status.st_mtime_ns < EPOCH + _SPAN
        return (status.st_mtime_ns if is_virtual else EPOCH + self._scheduler.now) / 1e9

    def _of(self, path: str) -> Disk:
        """Returns the disk that a path is on."""
        if path.startswith(self._base) and (disk := self.disks.get(path[len(self._base) :].partition("/")[0])):
            return disk
        raise LookupError(f"{path} is on none of the disks {', '.join(self.disks)} in {self._base}")


def _path(descriptor: int) -> str:
    return os.readlink(f"/proc/self/fd/{descriptor}").removesuffix(" (deleted)")  # noqa: PTH115  for each call


def _whole(path: Any, dir_fd: int | None) -> str:
    """Returns a path from the root on, without links above its last part."""
    text = os.fspath(path)
    return text if dir_fd is None or text.startswith("/") else f"{_path(dir_fd)}/{text}"
