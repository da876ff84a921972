"""A disk that may lose its power: which files got a name before they were synced, and which names never were."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

Content = tuple[int, int, int, int]  # device, inode, size and time of the last change


@dataclass
class Disk:
    """What was synced, and what was renamed, since `watched`.

    Attributes:
        named: the new name of each file that was renamed, and whether its content was on the disk then.
        names_to_sync: the folders that have got names since they were synced.
    """

    named: list[tuple[Path, bool]] = field(default_factory=list)
    names_to_sync: set[Path] = field(default_factory=set)
    _synced: set[Content] = field(default_factory=set)

    @property
    def too_early(self) -> list[Path]:
        """The names that files got before their content was on the disk."""
        return [path for path, is_synced in self.named if not is_synced]

    def has(self, path: Path) -> bool:
        """Returns whether the present content of a file is on the disk."""
        return _content(path.stat()) in self._synced

    def sync(self, descriptor: int) -> None:
        """Notes what a descriptor refers to."""
        self._synced.add(_content(os.fstat(descriptor)))
        self.names_to_sync.discard(Path(os.readlink(f"/proc/self/fd/{descriptor}")))  # noqa: PTH115

    def rename(self, old: Any, new: Any, **folders: int | None) -> None:
        """Notes a new name, unless it is below an open folder: those of claims and leases need not outlive a crash."""
        path = Path(os.path.abspath(os.fspath(new)))  # noqa: PTH100
        if not any(folders.values()) and path.is_file():
            self.named.append((path, self.has(path)))
            self.names_to_sync.add(path.parent)


def _content(status: os.stat_result) -> Content:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def watched(patch: pytest.MonkeyPatch) -> Disk:
    """Returns a disk that sees each sync and rename of this process from now on; nothing is really synced."""
    disk = Disk()

    def renaming(call: Any) -> Any:
        def rename(old: Any, new: Any, **folders: int | None) -> None:
            call(old, new, **folders)
            disk.rename(old, new, **folders)

        return rename

    for name in ("fsync", "fdatasync"):
        patch.setattr(os, name, disk.sync)
    for name in ("rename", "replace"):
        patch.setattr(os, name, renaming(getattr(os, name)))
    return disk
