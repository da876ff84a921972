# ruff: noqa: PTH101, PTH102, PTH104, PTH106, PTH108, PTH115, PTH116, PTH208
"""What FUSE servers of tests share: a folder passed through, changes to several folders alike.

python -m tests.helpers.passthrough MOUNT FOLDER SECONDS

The kernel keeps what it has seen of names, sizes, times and contents for SECONDS, as the caches of NFS clients do;
changes made in FOLDER itself, as by another client, show later.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any

import mfusepy


class Passthrough(mfusepy.Operations):  # type: ignore[misc]
    """Reads from the first folder, and changes names, modes and times in all."""

    use_ns = True

    def __init__(self, *folders: str, direct: bool = True) -> None:
        self.folders, self.direct = folders, direct

    def all(self, path: str) -> list[str]:
        return [folder + path for folder in self.folders]

    def first(self, path: str) -> str:
        return self.folders[0] + path

    def getattr(self, path: str, info: Any = None) -> dict[str, Any]:
        status = os.lstat(self.first(path))
        entry = {name: getattr(status, name) for name in ("st_mode", "st_nlink", "st_size", "st_uid", "st_gid")}
        return entry | {f"st_{name}time": getattr(status, f"st_{name}time_ns") for name in "amc"}

    def readdir(self, path: str, info: Any) -> list[str]:
        return [".", "..", *os.listdir(self.first(path))]

    def readlink(self, path: str) -> str:
        return os.readlink(self.first(path))

    def statfs(self, path: str) -> dict[str, int]:
        status = os.statvfs(self.folders[0])
        return {name: getattr(status, name) for name in ("f_bavail", "f_bfree", "f_blocks", "f_bsize", "f_frsize")}

    def mkdir(self, path: str, mode: int) -> None:
        for each in self.all(path):
            os.mkdir(each, mode)

    def rmdir(self, path: str) -> None:
        for each in self.all(path):
            os.rmdir(each)

    def unlink(self, path: str) -> None:
        for each in self.all(path):
            os.unlink(each)

    def rename(self, old: str, new: str) -> None:
        for old_path, new_path in zip(self.all(old), self.all(new), strict=True):
            os.rename(old_path, new_path)

    def link(self, target: str, source: str) -> None:
        for new_path, old_path in zip(self.all(target), self.all(source), strict=True):
            os.link(old_path, new_path)

    def symlink(self, target: str, source: str) -> None:
        for each in self.all(target):
            Path(each).symlink_to(source)

    def chmod(self, path: str, mode: int) -> None:
        for each in self.all(path):
            os.chmod(each, mode)

    def chown(self, path: str, uid: int, gid: int) -> None:
        for each in self.all(path):
            os.chown(each, uid, gid)

    def utimens(self, path: str, times: Any = None) -> None:
        for each in self.all(path):
            os.utime(each, ns=times)

    def truncate(self, path: str, length: int, fh: Any = None) -> None:
        for each in self.all(path):
            os.truncate(each, min(length, os.stat(each).st_size) if each != self.first(path) else length)

    def create(self, path: str, mode: int, info: Any) -> int:
        for each in self.all(path):
            os.close(os.open(each, os.O_RDWR | os.O_CREAT, mode))
        return self.open(path, info)

    def open(self, path: str, info: Any) -> int:
        info.fh = os.open(self.first(path), (info.flags & (os.O_ACCMODE | os.O_TRUNC)))
        info.direct_io = self.direct and not re.search("/files-[0-9a-f]+/.dlio/", path)  # which is mapped
        info.keep_cache = not self.direct
        return 0

    def read(self, path: str, size: int, offset: int, info: Any) -> bytes:
        return os.pread(info.fh, size, offset)

    def write(self, path: str, data: bytes, offset: int, info: Any) -> int:
        return os.pwrite(info.fh, data, offset)

    def fsync(self, path: str, datasync: int, info: Any) -> int:
        return 0

    def fsyncdir(self, path: str, datasync: int, info: Any) -> int:
        return 0

    def release(self, path: str, info: Any) -> int:
        os.close(info.fh)
        return 0


def serve(folder: Passthrough, mounted: str, **options: object) -> None:
    """Serves a folder to all users until it is unmounted."""
    mfusepy.FUSE(
        folder, mounted, foreground=True, raw_fi=True, allow_other=True, default_permissions=True, **options
    )  # fmt: skip


if __name__ == "__main__":
    kept = {f"{what}_timeout": float(sys.argv[3]) for what in ("attr", "entry", "negative")}
    serve(Passthrough(sys.argv[2], direct=False), sys.argv[1], **kept)
