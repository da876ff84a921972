"""The progress line of rank 0 while the data set that it reads is being staged.

staging: 12.3 GB of 23.8 GB, 1.9 GB/s, 6 s left; read 16.8 GB here, 2.1 GB at other nodes, 7.0 GB at the source;
waited 12 of 60 s
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial

from dlio.io import world
from dlio.io.arrivals import Filling
from dlio.io.sizes import format_size

FIRST_SECONDS, NEXT_SECONDS = 5.0, 30.0
_ORIGINS = {"disk": "here", "peer": "at other nodes", "source": "at the source"}

log = logging.getLogger(__name__)


@contextmanager
def shown(
    fillings: Sequence[Filling],
    rank_and_size: Callable[[], tuple[int, int]],
    stats: Callable[[], Mapping[str, float]],
) -> Iterator[None]:
    """Logs a line now and then within the body, on rank 0 until the folders are filled; `stats` are a loader's."""
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
