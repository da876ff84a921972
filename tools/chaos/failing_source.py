"""A FUSE view of a folder whose reads are slow, and go wrong at random while a file FAULT exists.

FAULT holds "fails" or "flips" and a chance between 0 and 1: a read answers EIO, or, if it is of a shard, with one bit
flipped.

python -m tools.chaos.failing_source FOLDER MOUNT FAULT SEED LATENCY_MS MB_PER_SECOND
"""

from __future__ import annotations

import argparse
import errno
import random
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import mfusepy

from benchmarks.slow_source import SlowSource
from dlio.dataset.manifest import NAME


class FailingSource(SlowSource):
    """Answers EIO, or a wrong bit, at random; see the module."""

    def __init__(self, options: argparse.Namespace, fault: Path, seed: int) -> None:
        super().__init__(options)
        self.fault, self.chance = fault, random.Random(seed)

    def read(self, path: str, size: int, offset: int, info: Any) -> bytes:
        """Reads slowly, fails, or flips a bit."""
        kind, chance = self._fault()
        is_wrong = self.chance.random() < chance
        if is_wrong and kind == "fails":
            raise mfusepy.FuseOSError(errno.EIO)
        data = super().read(path, size, offset, info)
        if is_wrong and data and Path(path).name != NAME:
            return _flipped(data, self.chance.randrange(8 * len(data)))
        return data

    def _fault(self) -> tuple[str, float]:
        """Returns how reads go wrong now, and how often."""
        with suppress(FileNotFoundError, ValueError):  # ValueError: it is just being written
            kind, chance = self.fault.read_text().split()
            return kind, float(chance)
        return "", 0.0


def _flipped(data: bytes, bit: int) -> bytes:
    changed = bytearray(data)
    changed[bit >> 3] ^= 1 << (bit & 7)
    return bytes(changed)


if __name__ == "__main__":
    folder, mount, fault, seed, latency, bandwidth = sys.argv[1:]
    given = argparse.Namespace(
        folder=folder,
        fail="",
        counts=None,
        most=None,
        lists=None,
        latency_ms=float(latency),
        bandwidth=float(bandwidth),
    )
    mfusepy.FUSE(
        FailingSource(given, Path(fault), int(seed)), mount, foreground=True, raw_fi=True, ro=True, allow_other=True
    )
