"""Publishing shards while the next ones are written, by threads of the process that hands out the tasks.

A worker that waits for its disk reads nothing. So a worker on the same machine leaves its shard unpublished, and this
process syncs it and gives it its names. This is safe: Linux keeps one page cache for all processes of a machine, and
reports a failed write to the first process that syncs the file. A worker on another machine publishes its shards
itself.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Generator
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from dlio.dataset.manifest import Shard
from dlio.errors import MissingError
from dlio.executors import Pool
from dlio.io.threads import Threads
from dlio.pack.write import WrittenShard, publish_shard

_MOST_THREADS = 8
_PATIENT_SECONDS = 5.0  # the wait for a running sync when the run ends early; a dead server may never answer


@contextmanager
def publishing(pool: Pool, listed: Callable[[Shard], None]) -> Generator[Pool, None, None]:
    """Gives a pool for tasks that return a `WrittenShard`; its futures give the published shard instead.

    Args:
        pool: the workers; a worker can get its next task while its last shard is published.
        listed: called with each published shard, by any thread, one call at a time.
    """
    publisher = _Publisher(pool.executor, min(pool.workers, _MOST_THREADS), listed)
    patience: float | None = _PATIENT_SECONDS
    try:
        yield replace(pool, executor=publisher, workers=pool.workers + -(-pool.workers // 2))
        patience = None
    finally:
        publisher.end(patience)


class _Publisher(Executor):
    """Hands tasks to another executor, and the written shards to threads that publish them."""

    def __init__(self, executor: Executor, num_threads: int, listed: Callable[[Shard], None]) -> None:
        self._executor = executor
        self._threads, self._num_threads = Threads(0, "dlio-publisher"), num_threads
        self._listed = listed
        self._listing, self._ending = threading.Lock(), threading.Lock()
        self._aside: set[Path] = set()
        self._has_ended = False

    def submit(self, fn: Callable[..., Any], /, *args: object, **kwargs: object) -> Future[Any]:
        published: Future[Shard] = Future()
        self._executor.submit(fn, *args, **kwargs).add_done_callback(partial(self._publish, published))
        return published

    def _publish(self, published: Future[Shard], task: Future[WrittenShard]) -> None:
        error = task.exception() if not task.cancelled() else None
        if task.cancelled():
            published.cancel()
            published.set_running_or_notify_cancel()
        elif error is not None:
            published.set_exception(error)
        else:
            written = task.result()
            if written.aside is not None:
                self._aside.add(written.aside)
            with self._ending:
                if self._has_ended:  # by an interrupt: nobody would end a thread that starts now
                    published.cancel()
                    self._clear()
                    return
                try:
                    self._threads.grow(max(1, min(self._num_threads, len(self._aside))))
                    self._threads.submit(partial(self._settle, published, written))
                except MissingError as none_starts:  # the caller drops what it raises
                    published.set_exception(none_starts)

    def _settle(self, published: Future[Shard], written: WrittenShard) -> None:
        try:
            shard = publish_shard(written)
            if written.aside is not None:
                self._aside.discard(written.aside)
            with self._listing:
                self._listed(shard)
            published.set_result(shard)
        except BaseException as error:
            published.set_exception(error)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self._executor.shutdown(wait, cancel_futures=cancel_futures)

    def end(self, seconds: float | None) -> None:
        """Ends the threads, and removes the unpublished shards."""
        with self._ending:
            self._has_ended = True
        self._threads.end(seconds)
        self._clear()

    def _clear(self) -> None:
        for aside in tuple(self._aside):
            shutil.rmtree(aside, ignore_errors=True)
