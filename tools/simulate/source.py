"""The source of a simulation: a small data set on a shared disk that the real `MountedFolder` reads.

All nodes share its rate, and each read is counted by blocks. It can be slow, fail, change, or disappear.
"""

from __future__ import annotations

import os
from collections import defaultdict

from tools.simulate.causes import Read
from tools.simulate.data_set import DataSet
from tools.simulate.disk import READ, Disk
from tools.simulate.scheduler import Scheduler
from tools.simulate.storage import Call

COUNTED_BYTES = 16 << 10  # of a block whose reads are counted

#: What can go wrong with the source's files, next to what can go wrong with its disk.
SPOILT = {"changed": "a file gets other bytes and another time", "gone": "a file is not there"}


class Source:
    """The source's faults, and what was read of it.

    Args:
        scheduler: has the time, and runs who reads.
        data: the data set.
        disk: that it lies on.

    Attributes:
        bytes_read: so far.
        reads: of each block, by the file's name and its number there, in order.
    """

    def __init__(self, scheduler: Scheduler, data: DataSet, disk: Disk) -> None:
        self._scheduler, self._data, self._disk = scheduler, data, disk
        self.reads: defaultdict[tuple[str, int], list[Read]] = defaultdict(list)
        self._spoilt: dict[str, int] = {}
        self.bytes_read = 0

    def note(self, call: Call) -> None:
        """Counts a read; called by `Storage`."""
        if call.kind != READ or call.disk is not self._disk or call.name not in self._data.contents:
            return
        task = self._scheduler.current
        assert task
        self.bytes_read += call.end - call.begin
        for block in range(-(-call.begin // COUNTED_BYTES), -(-call.end // COUNTED_BYTES)):  # a short read continues
            self.reads[call.name, block].append(Read(self._scheduler.now, task.process))

    def spoil(self, kind: str, number: int) -> None:
        """Begins a fault of SPOILT with one of the files."""
        names = sorted(self._data.contents)
        name = names[number % len(names)]
        path = self._data.manifest.root / name
        if name not in self._spoilt:
            self._disk.note(kind, name)
            self._spoilt[name] = path.stat().st_mtime_ns
            if kind == "gone":
                path.unlink()
            else:
                path.write_bytes(self._data.contents[name][::-1])
                os.utime(path, ns=self._disk.times())

    def mend(self) -> None:
        """Ends these faults: all files have their bytes and times again."""
        for name, changed in self._spoilt.items():
            path = self._data.manifest.root / name
            path.write_bytes(self._data.contents[name])
            path.chmod(0o600)
            os.utime(path, ns=(changed, changed))
        self._spoilt.clear()
