"""Storage that counts as slow or fast, whatever it is, for packs in this process and in others."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

from dlio.pack import prefetch
from dlio.pack.prefetch import Depth

SLOW, FAST = -1.0, float("inf")  # the most seconds that a fast read takes


@contextmanager
def storage(seconds: float) -> Iterator[None]:
    """Reads that take longer than `seconds` count as slow, and nothing is known yet; workers inherit that."""
    before = prefetch.SLOW_SECONDS, prefetch._learned, prefetch._num_waits
    prefetch.SLOW_SECONDS, prefetch._learned, prefetch._num_waits = seconds, Depth(), count().__next__
    try:
        yield
    finally:
        prefetch.SLOW_SECONDS, prefetch._learned, prefetch._num_waits = before


PACK = """
import itertools, sys
from dlio.pack import prefetch
prefetch.SLOW_SECONDS, prefetch._num_waits = float(sys.argv[1]), itertools.count().__next__
from dlio.cli import main
sys.exit(main(sys.argv[2:]))
"""


def command(seconds: float, *words: str | Path) -> list[str]:
    return [sys.executable, "-c", PACK, str(seconds), *map(str, words)]
