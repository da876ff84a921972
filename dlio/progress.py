"""A progress bar on a terminal, a line a minute elsewhere; on rank 0 only."""

from __future__ import annotations

import logging
import sys
import time
from typing import Any

from dlio.sizes import format_size

LOG_SECONDS = 60.0
log = logging.getLogger(__name__)


class Progress:
    """Shows how far a verb has come; used by one thread, as a context manager."""

    def __init__(self, verb: str, *, unit: str, quiet: bool) -> None:
        """Shows nothing yet; `quiet` shows nothing ever."""
        self._verb = verb
        self._unit = unit
        self._quiet = quiet
        self._bar: Any = None
        self._total = self._done = self._bytes = 0
        self._began = self._logged = time.monotonic()

    def start(self, total: int) -> None:
        """Begins, with `total` units to do."""
        self._total = total
        self._began = self._logged = time.monotonic()
        if not self._quiet and sys.stderr.isatty():
            from tqdm import tqdm

            self._bar = tqdm(total=total, desc=self._verb, unit=f" {self._unit}")

    def advance(self, units: int, num_bytes: int) -> None:
        """Adds units, and bytes, that are done."""
        self._done += units
        self._bytes += num_bytes
        now = time.monotonic()
        rate = f"{format_size(self._bytes / max(now - self._began, 1e-9))}/s"
        if self._bar is not None:
            self._bar.set_postfix_str(rate, refresh=False)
            self._bar.update(units)
        elif not self._quiet and now - self._logged >= LOG_SECONDS:
            self._logged = now
            log.warning("%s: %d of %d %s, %s", self._verb, self._done, self._total, self._unit, rate)

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()
