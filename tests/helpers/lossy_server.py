"""A FUSE disk with a write cache that may be lost, and its own faults: what dm-flakey does, without /dev/mapper.

Reads see the cache, the folder FOLDER/cache. A file's fsync brings it to the disk, FOLDER/disk, where names are at
once. FOLDER/fault holds what goes wrong now:

    fsync N    the first fsync of a file of N bytes or more answers EIO; its pages count as clean from then
               on, as in Linux' page cache
    lose N     what is written from the N-th byte of a file on is acknowledged and lost
    tear N     of a write that reaches the N-th byte of a file only the first half arrives; all is acknowledged
    zero N     as `tear`, but the file gets its whole length
    lies       an fsync is acknowledged and writes nothing
python -m tests.helpers.lossy_server MOUNT FOLDER
"""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path
from typing import Any

import mfusepy

from tests.helpers.passthrough import Passthrough, serve


class Lossy(Passthrough):
    """See the module."""

    def __init__(self, folder: Path) -> None:
        super().__init__(f"{folder}/cache", f"{folder}/disk")
        self.faults = folder / "fault"
        self.clean: set[int] = set()

    def fault(self) -> tuple[str, int]:
        kind, _, number = self.faults.read_text().partition(" ")
        return kind, int(number or 0)

    def open(self, path: str, info: Any) -> int:
        info.flags = info.flags & os.O_TRUNC | os.O_RDWR
        return super().open(path, info)

    def write(self, path: str, data: bytes, offset: int, info: Any) -> int:
        kind, number = self.fault()
        kept = data
        if offset + len(data) > number and kind in ("lose", "tear", "zero"):
            kept = data[: max(0, number - offset)] if kind == "lose" else data[: len(data) // 2]
            if kind == "zero":
                kept += bytes(len(data) - len(kept))
        self.clean.discard(os.fstat(info.fh).st_ino)
        os.pwrite(info.fh, kept, offset)
        return len(data)

    def fsync(self, path: str, datasync: int, info: Any) -> int:
        kind, least = self.fault()
        status = os.fstat(info.fh)
        if kind == "fsync" and status.st_size >= least:
            self.clean.add(status.st_ino)
            self.faults.write_text("")
            raise mfusepy.FuseOSError(errno.EIO)
        if kind != "lies" and status.st_ino not in self.clean:
            Path(self.all(path)[1]).write_bytes(Path(f"/proc/self/fd/{info.fh}").read_bytes())
        return 0


if __name__ == "__main__":
    serve(Lossy(Path(sys.argv[2])), sys.argv[1])
