"""Storage that counts as slow or fast, whatever it is, for packs in this process and in others."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dlio.pack import prefetch
from dlio.pack.prefetch import Depth

SLOW, FAST = -1.0, float("inf")  # the most seconds that a fast read takes


@contextmanager
def storage(seconds: float) -> Iterator[None]:
    """Reads that take longer than `seconds` count as slow, and nothing is known yet; workers inherit that."""
    before = prefetch.SLOW_SECONDS, prefetch._learned
    prefetch.SLOW_SECONDS, prefetch._learned = seconds, Depth()
    try:
        yield
    finally:
        prefetch.SLOW_SECONDS, prefetch._learned = before


PACK = """
import sys
from dlio.pack import prefetch
prefetch.SLOW_SECONDS = float(sys.argv[1])
from dlio.cli import main
sys.exit(main(sys.argv[2:]))
"""


def command(seconds: float, *words: str | Path) -> list[str]:
    return [sys.executable, "-c", PACK, str(seconds), *map(str, words)]
