"""A progress bar on a terminal, else a line each minute: samples, shards, rates and time left, computed by tqdm.

In a log:

    pack: 3000 of 6000 samples, 6 of 12 shards, 4.3 MB/s, 50.00 samples/s, 01:00 gone, 01:00 left
"""

from __future__ import annotations

import logging
import sys
import time
from typing import Any

from dlio.io.sizes import format_size

LOG_SECONDS = 60.0
_LINE = "{desc}{n_fmt} of {total_fmt}{unit}{postfix}, {rate_noinv_fmt}, {elapsed} gone, {remaining} left"
log = logging.getLogger(__name__)


class Progress:
    """Shows the progress of a verb; used by one thread, as a context manager.

    In a job of many processes, one process shows the progress of all, and the others are `quiet`.

    Attributes:
        note: a text shown with the figures, such as the slowest of many nodes.
    """

    def __init__(self, verb: str, *, unit: str, quiet: bool) -> None:
        """Shows nothing yet, and with `quiet` nothing at all; the unit is samples, shards, or bytes."""
        self.note = ""
        self._verb = verb
        self._counts_bytes = unit == "bytes"
        self._unit: dict[str, Any] = {"unit": f" {unit}"} if unit != "bytes" else {"unit": "B", "unit_scale": True}
        self._quiet = quiet
        self._bar: Any = None
        self._total = self._done = self._shards = self._num_shards = self._bytes = 0
        self._before = 0
        self._began = self._logged = time.monotonic()

    def start(self, total: int, num_shards: int = 0) -> None:
        """Begins, with `total` units in `num_shards`; units added before were done by an earlier run.

        A second call changes the total.
        """
        self._num_shards = num_shards
        if self._total:
            self._total = total
            if self._bar is not None:
                self._bar.total = total
            return
        self._total = total
        self._before, self._bytes = self._done, 0
        self._began = self._logged = time.monotonic()
        if not self._quiet and sys.stderr.isatty():
            from tqdm import tqdm

            self._bar = tqdm(total=total, initial=self._before, desc=self._verb, **self._unit)

    def advance(self, units: int, num_bytes: int, num_shards: int = 0) -> None:
        """Adds finished units, their bytes, and shards."""
        self._done += units
        self._bytes += num_bytes
        self._shards += num_shards
        if self._bar is not None:
            self._bar.set_postfix_str(self._more(), refresh=False)
            self._bar.update(units)
        elif not self._quiet and time.monotonic() - self._logged >= LOG_SECONDS:
            self._logged = time.monotonic()
            log.warning("%s", self._line())

    def _line(self) -> str:
        from tqdm import tqdm

        seconds = time.monotonic() - self._began
        words = {"prefix": f"{self._verb}: ", "postfix": self._more(), "bar_format": _LINE, **self._unit}
        return str(tqdm.format_meter(self._done, self._total, seconds, initial=self._before, **words))

    def _more(self) -> str:
        """Returns the figures that tqdm does not compute: shards, and bytes a second unless bytes are counted."""
        parts = [f"{self._shards} of {self._num_shards} shards"] if self._num_shards else []
        if not self._counts_bytes:
            parts.append(f"{format_size(self._bytes / max(time.monotonic() - self._began, 1e-9))}/s")
        return ", ".join([*parts, self.note] if self.note else parts)

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()
