"""Work done by threads ahead of need, within a bound, and nothing left behind."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Work(Generic[T]):
    """One item to make.

    Attributes:
        item: what is handed out when all parts are done; the parts fill it.
        parts: independent pieces of the work, called once each, by any thread.
    """

    item: T
    parts: tuple[Callable[[], None], ...]


def ahead(
    works: Iterable[Work[T]], num_threads: int, prefetch: int, timeout: float | None = None
) -> Generator[T, None, None]:
    """Yields the item of each work, in order, made by threads while the consumer is busy with others.

    Besides the item in use, up to `prefetch` items are under way or waiting; `works` is drawn from no faster. When the
    generator is closed, or a part fails, parts that run are waited for, the rest is dropped, and no thread is left.

    Args:
        works: what to make; drawn from by the consumer's thread.
        num_threads: how many threads; 0 makes each item when it is asked for.
        prefetch: how many items ahead, at least 1.
        timeout: seconds to wait for an item at most; None waits as long as it takes.

    Raises:
        Exception: whatever a part raised, when its item is asked for.
        TimeoutError: an item took longer than `timeout`.
    """
    if num_threads == 0:
        yield from map(_finish, works)
        return
    executor = ThreadPoolExecutor(num_threads, thread_name_prefix="dlio-loader")
    waiting: deque[tuple[T, list[Future[None]]]] = deque()
    try:
        for work in works:
            waiting.append((work.item, [executor.submit(part) for part in work.parts]))
            if len(waiting) > prefetch:
                yield _wait(*waiting.popleft(), timeout)
        while waiting:
            yield _wait(*waiting.popleft(), timeout)
    finally:
        executor.shutdown(wait=True, cancel_futures=True)


def _finish(work: Work[T]) -> T:
    for part in work.parts:
        part()
    return work.item


def _wait(item: T, parts: list[Future[None]], timeout: float | None) -> T:
    for part in parts:
        part.result(timeout)
    return item


def num_usable_cores() -> int:
    """Returns how many cores this process may use: its affinity mask, bounded by the control group's quota."""
    cores = len(os.sched_getaffinity(0))
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
    except (OSError, ValueError):  # no control groups of version 2, or this process is in the root group
        return cores
    return cores if quota == "max" else max(1, min(cores, int(quota) // int(period)))
