"""A progress bar on a terminal, else a line each half minute: samples, shards, rates and time left, computed by tqdm.

A thread shows them, so that the clock runs while a shard is written; what workers have done of it comes from `watch`.

In a log:

    pack: 3000 of 6000 samples, 6 of 12 shards, 4.3 MB/s, 50.00 samples/s, 01:00 gone, 01:00 left
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from dlio.errors import MissingError
from dlio.io import world
from dlio.io.sizes import format_size
from dlio.pack.shard_progress import Watch

LOG_SECONDS = 30.0
BAR_SECONDS = 0.5
log = logging.getLogger(__name__)


_showing = threading.Lock()  # no process is forked while the thread prints: a copied lock of a stream would stay locked
os.register_at_fork(before=_showing.acquire, after_in_parent=_showing.release, after_in_child=_showing.release)


class Progress:
    """Shows the progress of a verb; a context manager.

    In a job of many processes, one process shows the progress of all, and the others are `quiet`.

    Attributes:
        note: a text shown with the figures, such as the slowest of many nodes.
        watch: what is done of unfinished shards.
    """

    def __init__(self, verb: str, *, unit: str, quiet: bool) -> None:
        """Shows nothing yet, and with `quiet` nothing at all; the unit is samples, shards, or bytes."""
        self.note = ""
        self.watch = Watch()
        self._ended = threading.Event()
        self._thread: world.Thread | None = None
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
        if self._quiet:
            return
        if sys.stderr.isatty():
            from tqdm import tqdm

            columns = os.get_terminal_size(sys.stderr.fileno()).columns or 80  # a job's terminal may say 0 x 0
            room = max(columns - len("^C"), 1)  # else Ctrl-C would begin a new row, and the last bar be shown twice
            shown: dict[str, Any] = {"ncols": room, "nrows": 2, **self._unit}
            self._bar = tqdm(total=total, initial=self._before, desc=self._verb, **shown)
        with suppress(MissingError):  # it is shown whenever a unit is done
            self._thread = world.start(self._run, "dlio-progress")

    def advance(self, units: int, num_bytes: int, num_shards: int = 0) -> None:
        """Adds finished units, their bytes, and shards."""
        self._done += units
        self._bytes += num_bytes
        self._shards += num_shards
        if not self._quiet:
            self._show()

    def _run(self) -> None:
        while not self._ended.wait(BAR_SECONDS):
            self._show()

    def _show(self) -> None:
        """Draws the bar, or logs a line if the last one was long ago."""
        with _showing:
            if self._bar is not None:
                self._bar.n = self._now()[0]
                self._bar.set_postfix_str(self._more(), refresh=True)
            elif self._total and time.monotonic() - self._logged >= LOG_SECONDS:
                self._logged = time.monotonic()
                log.warning("%s", self._line())

    def _now(self) -> tuple[int, int]:
        """Returns units and bytes done, with those of unfinished shards."""
        samples, num_bytes = self.watch.now()
        units = min(self._total, self._done + (num_bytes if self._counts_bytes else samples))
        return max(units, self._done), self._bytes + num_bytes

    def _line(self) -> str:
        from tqdm import tqdm

        done, seconds = self._now()[0], time.monotonic() - self._began
        amount, rate = "{n_fmt} of {total_fmt}{unit}", "{rate_noinv_fmt}"
        if self._counts_bytes:
            amount = f"{format_size(done)} of {format_size(self._total)}"
            rate = f"{format_size((done - self._before) / max(seconds, 1e-9))}/s"
        line = f"{{desc}}{amount}{{postfix}}, {rate}, {{elapsed}} elapsed, {{remaining}} left"
        fields = {"prefix": f"{self._verb}: ", "postfix": self._more(), "bar_format": line, **self._unit}
        return str(tqdm.format_meter(done, self._total, seconds, initial=self._before, **fields))

    def _more(self) -> str:
        """Returns the figures that tqdm does not compute: shards, and bytes a second unless bytes are counted."""
        parts = [f"{self._shards} of {self._num_shards} shards"] if self._num_shards else []
        if not self._counts_bytes:
            parts.append(f"{format_size(self._now()[1] / max(time.monotonic() - self._began, 1e-9))}/s")
        return ", ".join([*parts, self.note] if self.note else parts)

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
        if self._bar is not None:
            self._bar.close()


@contextmanager
def terminable() -> Iterator[None]:
    """Makes SIGTERM end the work in this context as Ctrl-C does, so that another process can continue at once."""
    previous = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)
