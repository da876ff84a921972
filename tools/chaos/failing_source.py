"""A FUSE view of a folder whose reads are slow, and fail as long as a file FAULT holds a chance between 0 and 1.

python -m tools.chaos.failing_source FOLDER MOUNT FAULT SEED LATENCY_MS MB_PER_SECOND
"""

from __future__ import annotations

import argparse
import errno
import random
import sys
from pathlib import Path
from typing import Any

import mfusepy

from benchmarks.slow_source import SlowSource


class FailingSource(SlowSource):
    """Answers EIO by chance; see the module."""

    def __init__(self, options: argparse.Namespace, fault: Path, seed: int) -> None:
        super().__init__(options)
        self.fault, self.chance = fault, random.Random(seed)

    def read(self, path: str, size: int, offset: int, info: Any) -> bytes:
        """Reads, slowly, or fails."""
        if self.fault.exists() and self.chance.random() < float(self.fault.read_text() or 0):
            raise mfusepy.FuseOSError(errno.EIO)
        return super().read(path, size, offset, info)


if __name__ == "__main__":
    folder, mount, fault, seed, latency, bandwidth = sys.argv[1:]
    given = argparse.Namespace(
        folder=folder, fail="", counts=None, most=None, latency_ms=float(latency), bandwidth=float(bandwidth)
    )  # fmt: skip
    mfusepy.FUSE(
        FailingSource(given, Path(fault), int(seed)), mount, foreground=True, raw_fi=True, ro=True, allow_other=True
    )
