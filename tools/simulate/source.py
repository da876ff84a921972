"""The source of a simulation: a small data set on a shared disk that the real `MountedFolder` reads.

All nodes share its rate, and each read is counted by blocks. It can be slow, fail, change, or disappear.
"""

from __future__ import annotations

import os
from collections import Counter

from tools.simulate.data_set import DataSet
from tools.simulate.disk import Disk

COUNTED_BYTES = 16 << 10  # of a block whose reads are counted

#: What can go wrong with the source's files, next to what can go wrong with its disk.
SPOILT = {"changed": "a file gets other bytes and another time", "gone": "a file is not there"}


class Source:
    """The source's faults, and what was read of it.

    Args:
        data: the data set.
        disk: that it lies on.

    Attributes:
        bytes_read: so far.
    """

    def __init__(self, data: DataSet, disk: Disk) -> None:
        self._data, self._disk = data, disk
        self._reads = Counter[tuple[str, int]]()
        self._spoilt: dict[str, int] = {}
        self.bytes_read = 0

    def note_read(self, name: str, offset: int, count: int) -> None:
        """Counts a read; called by `Storage`."""
        if name in self._data.contents:
            self.bytes_read += count
            for block in range(offset // COUNTED_BYTES, -(-(offset + count) // COUNTED_BYTES)):
                self._reads[name, block] += 1

    @property
    def total_bytes(self) -> int:
        """The size of the data set."""
        return self._data.manifest.num_bytes

    def most_read(self) -> tuple[int, str, int]:
        """Returns how often the block was read that was read most, its file, and its number there."""
        (name, block), times = max(self._reads.items(), key=lambda item: (item[1], item[0]), default=(("", 0), 0))
        return times, name, block

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
