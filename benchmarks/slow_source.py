"""A read-only FUSE view of a folder that imitates a slow, shared or failing source, and counts what is read from it.

    python slow_source.py FOLDER MOUNT [--latency-ms L] [--bandwidth MB/s] [--fail NAME] [--counts FILE]
        [--most FILE]

Every read waits for the latency, then takes its turn at the bandwidth, which all readers share. Reads of files whose
path holds NAME answer EIO. The file of --counts holds the bytes read so far, that of --most how many reads
were under way at once, as decimal digits. Needs the package mfusepy and libfuse.
"""

from __future__ import annotations

import argparse
import errno
import os
import threading
import time
from typing import Any

import mfusepy


class SlowSource(mfusepy.Operations):  # type: ignore[misc]
    """Passes reads through; see the module."""

    use_ns = True

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.turnstile = threading.Lock()
        self.free_at = 0.0
        self.num_read = 0
        self.counts = os.open(options.counts, os.O_RDWR | os.O_CREAT | os.O_TRUNC) if options.counts else None
        self.most = os.open(options.most, os.O_RDWR | os.O_CREAT | os.O_TRUNC) if options.most else None
        self.lists = os.open(options.lists, os.O_WRONLY | os.O_CREAT | os.O_APPEND) if options.lists else None
        self.under_way = self.most_under_way = 0

    def path(self, path: str) -> str:
        return str(self.options.folder) + path

    def getattr(self, path: str, info: Any = None) -> dict[str, Any]:
        status = os.lstat(self.path(path))
        entry = {name: getattr(status, name) for name in ("st_mode", "st_nlink", "st_size", "st_uid", "st_gid")}
        return entry | {f"st_{name}time": getattr(status, f"st_{name}time_ns") for name in "amc"}

    def readdir(self, path: str, info: Any) -> list[str]:
        if self.lists is not None:
            os.write(self.lists, f"{path}\n".encode())
        return [".", "..", *(entry.name for entry in os.scandir(self.path(path)))]

    def readlink(self, path: str) -> str:
        return os.readlink(self.path(path))  # noqa: PTH115  of text

    def open(self, path: str, info: Any) -> int:
        info.fh = os.open(self.path(path), os.O_RDONLY)
        info.direct_io = 1  # no page cache: every reader's reads come here, as those of many nodes would
        return 0

    def read(self, path: str, size: int, offset: int, info: Any) -> bytes:
        if self.options.fail and self.options.fail in path:
            raise mfusepy.FuseOSError(errno.EIO)
        with self.turnstile:
            self.under_way += 1
            if self.most is not None and self.under_way > self.most_under_way:
                self.most_under_way = self.under_way
                os.pwrite(self.most, b"%d" % self.most_under_way, 0)
        time.sleep(self.options.latency_ms / 1000)
        data = os.pread(info.fh, size, offset)
        with self.turnstile:
            self.under_way -= 1
            self.num_read += len(data)
            if self.counts is not None:
                os.pwrite(self.counts, b"%d" % self.num_read, 0)
            if self.options.bandwidth:
                now = time.monotonic()
                self.free_at = max(now, self.free_at) + len(data) / (self.options.bandwidth * 1e6)
            turn = self.free_at
        time.sleep(max(0.0, turn - time.monotonic()))
        return data

    def release(self, path: str, info: Any) -> int:
        os.close(info.fh)
        return 0

    def statfs(self, path: str) -> dict[str, int]:
        status = os.statvfs(self.path(path))
        return {name: getattr(status, name) for name in ("f_bavail", "f_bfree", "f_blocks", "f_bsize", "f_frsize")}


def main() -> None:
    parser = argparse.ArgumentParser(description="A slow, counted, read-only view of a folder.")
    parser.add_argument("folder", type=os.path.abspath)
    parser.add_argument("mount", type=os.path.abspath)
    parser.add_argument("--latency-ms", type=float, default=0.0)
    parser.add_argument("--bandwidth", type=float, default=0.0, help="MB/s over all readers")
    parser.add_argument("--fail", default="", help="answer EIO for paths that hold this")
    parser.add_argument("--counts", help="a file that keeps the bytes read so far")
    parser.add_argument("--most", help="a file that keeps the most reads under way at once")
    parser.add_argument("--lists", help="a file that gets a line for each folder that is listed")
    options = parser.parse_args()
    mfusepy.FUSE(
        SlowSource(options), options.mount, foreground=True, nothreads=False, raw_fi=True, ro=True, allow_other=True,
        fsname="slowsource", subtype="slowsource",
    )  # fmt: skip


if __name__ == "__main__":
    main()
