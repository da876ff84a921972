"""A disk that loses what it has acknowledged: dm-flakey's faults, by FUSE."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.helpers.fuse import served


class LossyDisk:
    """A disk that is mounted at `mounted`; its faults are those of `lossy_server.py`."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.mounted = folder, folder / "mounted"
        for name in ("cache", "disk", "mounted"):
            (folder / name).mkdir(parents=True)
        self._served = ExitStack()

    def plug_in(self) -> None:
        """Mounts it with the disk's content, without faults."""
        self.fault("")
        shutil.rmtree(self.folder / "cache")
        subprocess.run(["cp", "-a", self.folder / "disk", self.folder / "cache"], check=True)
        self._served.enter_context(served("lossy_server", self.mounted, self.folder))

    def fault(self, kind: str) -> None:
        """Makes writes fail from now on."""
        (self.folder / "fault").write_text(kind)

    def unplug(self) -> None:
        """Loses the cache."""
        self._served.close()

    def cut_power(self) -> None:
        """Loses the cache, and continues with what was on the disk."""
        self.unplug()
        self.plug_in()


@contextmanager
def lossy_disk(folder: Path) -> Iterator[LossyDisk]:
    """Yields a mounted disk."""
    disk = LossyDisk(folder)
    try:
        disk.plug_in()
        yield disk
    finally:
        disk.unplug()
