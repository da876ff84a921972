"""What a loader counts: the seconds of each stage of an epoch, with a verdict in one line, and damaged samples.

While the data set is being staged, rank 0 logs how far that is.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial

from dlio.errors import CorruptRecordError
from dlio.io import trace, world
from dlio.io.arrivals import Filling
from dlio.io.sizes import counted, format_size
from dlio.locking.fork_lock import ForkLock

_KEEPS_UP = 0.05  # share of an epoch; a trainer that waits less gains little by a change
_SECONDS = ("epoch_seconds", "wait_seconds", "read_seconds", "decode_seconds", "collate_seconds")
_STAGES = ("read", "decode", "collate")
FIRST_SECONDS, NEXT_SECONDS = 5.0, 30.0  # of the line about staging
_ORIGINS = {"disk": "here", "peer": "at other nodes", "source": "at the source"}
log = logging.getLogger(__name__)


class Clock:
    """Adds up counts and the seconds that threads spend in each stage; safe for several threads.

    A pickled copy starts from zero.
    """

    def __init__(self) -> None:
        self._lock = ForkLock()
        self.clear()

    def clear(self) -> None:
        """Sets everything to zero."""
        with self._lock:
            self._sums: dict[str, float] = {}

    def __reduce__(self) -> tuple[type[Clock], tuple[()]]:
        return Clock, ()

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Adds the seconds spent in its body to `NAME_seconds`."""
        began = time.perf_counter()
        try:
            yield
        finally:
            ended = time.perf_counter()
            self.add(f"{name}_seconds", ended - began)
            trace.add(name, began, ended)

    def add(self, name: str, amount: float) -> None:
        """Adds `amount` to `name`."""
        with self._lock:
            self._sums[name] = self._sums.get(name, 0) + amount

    def sums(self) -> dict[str, float]:
        """Returns the sums so far, by name."""
        with self._lock:
            return dict(self._sums)


def figures(
    counted: Mapping[str, float], before: Mapping[str, float], now: Mapping[str, float]
) -> dict[str, float | int]:
    """Returns the times of an epoch, where its bytes came from, and how long threads waited for them.

    Args:
        counted: the sums of its clock.
        before: what `dlio.io.arrivals.arrived` returned at its start.
        now: what that returns now.
    """
    since = {name: n - before.get(name, 0) for name, n in now.items()}
    away = {name: int(since.get(name, 0)) for name in ("peer_bytes", "source_bytes")}
    counts = {"batches": int(counted.get("batches", 0))}
    counts["disk_bytes"] = max(0, int(counted.get("read_bytes", 0)) - sum(away.values()))
    waited = {name: since.get(name, 0.0) for name in ("peer_seconds", "source_seconds")}
    return {name: counted.get(name, 0.0) for name in _SECONDS} | counts | away | waited


def verdict(stats: Mapping[str, float], num_cores: int, *, faster: str = "--crop-ready or --decode-ready") -> str:
    """Returns one line: how long the trainer waited for batches, why, and what to change.

    Args:
        stats: as `Loader.stats` returns them.
        num_cores: the number of cores that this process may use.
        faster: the options of `dlio pack` that would make its images decode faster; "" if there are none.
    """
    epoch_seconds = stats["epoch_seconds"]
    waited = stats["wait_seconds"] / epoch_seconds if epoch_seconds else 0.0
    begin = f"the trainer waited {waited:.0%} of {epoch_seconds:.1f} s"
    if waited < _KEEPS_UP:
        return f"{begin}: the loader keeps up"
    num_threads = stats["num_workers"]
    busiest = max(_STAGES, key=lambda stage: stats[f"{stage}_seconds"])
    needed_seconds = sum(stats[f"{stage}_seconds"] for stage in _STAGES)
    idle_seconds = max(epoch_seconds - stats["wait_seconds"], epoch_seconds / num_cores)
    wanted = min(num_cores, max(num_threads + 1, -int(-needed_seconds // idle_seconds)))
    advice = [f"use {counted(int(wanted), 'thread')}"] if wanted > num_threads else []
    busiest = _awaited(stats) if busiest == "read" else busiest
    advice += {
        "read": ["stage to local storage, or shuffle by a Window"],
        "source": ["later epochs read what is staged by then, or stage before the job: dlio stage --background"],
        "peer": ["keep more on each node, or use a faster network: DLIO_INTERFACE"],
        "decode": [f"pack with {faster}, or smaller images" if faster else "pack smaller images"],
        "collate": ["leave collate_fn out"],
    }[busiest]
    threads = "no threads" if not num_threads else counted(int(num_threads), "thread")
    return f"{begin}: {busiest}-bound, {threads}; {', or '.join(advice)}"


def _awaited(stats: Mapping[str, float]) -> str:
    """Returns what the reading threads waited for: the source, a peer, or else the node's own storage: "read"."""
    source, peer = stats.get("source_seconds", 0), stats.get("peer_seconds", 0)
    if source + peer < stats["read_seconds"] / 2:
        return "read"
    return "source" if source >= peer else "peer"


@contextmanager
def staging_shown(
    fillings: Sequence[Filling],
    rank_and_size: Callable[[], tuple[int, int]],
    stats: Callable[[], Mapping[str, float]],
) -> Iterator[None]:
    """Logs a line now and then within the body, on rank 0 until the folders are filled; `stats` are a loader's.

    staging: 12.3 GB of 23.8 GB, 1.9 GB/s, 6 s left; read 16.8 GB here, 2.1 GB at other nodes, 7.0 GB at the source;
    waited 12 of 60 s
    """
    ended = threading.Event()
    if not fillings or rank_and_size()[0]:
        yield
        return
    thread = world.start(partial(_show, fillings, stats, ended), "dlio-staging-line")
    try:
        yield
    finally:
        ended.set()
        thread.join(1.0)  # it may be asking an agent that hangs


def _show(fillings: Sequence[Filling], stats: Callable[[], Mapping[str, float]], ended: threading.Event) -> None:
    began, pause = time.monotonic(), FIRST_SECONDS
    while not ended.wait(pause) and (progress := [text for each in fillings if (text := each.progress())]):
        pause, found = NEXT_SECONDS, stats()
        read = ", ".join(f"{format_size(found[f'{name}_bytes'])} {where}" for name, where in _ORIGINS.items())
        waited = f"waited {found['wait_seconds']:.0f} of {time.monotonic() - began:.0f} s"
        log.warning("staging: %s; read %s; %s", "; ".join(progress), read, waited)


class Skips:
    """Counts skipped samples up to a limit; safe for several threads.

    A pickled copy keeps the limit and counts from 0.
    """

    def __init__(self, limit: int) -> None:
        """Allows `limit` damaged samples; 0 raises at the first."""
        self.limit = limit
        self._lock = ForkLock()
        self._found: dict[tuple[str, int | None], CorruptRecordError] = {}

    def __reduce__(self) -> tuple[type[Skips], tuple[int]]:
        return Skips, (self.limit,)

    def __len__(self) -> int:
        """Returns the number of different samples that were skipped."""
        return len(self._found)

    def note(self, error: CorruptRecordError) -> None:
        """Counts a damaged sample; the same sample counts once.

        Raises:
            CorruptRecordError: `error`, if the limit is reached, or if a whole file is damaged rather than a sample.
        """
        if error.record is None:
            raise error
        with self._lock:
            if (error.path, error.record) in self._found:
                return
            if len(self._found) >= self.limit:
                raise error
            self._found[error.path, error.record] = error
        log.warning("left out: %s", error)
