"""Engines: each a context manager that yields a concurrent.futures.Executor, the only seam for running in parallel.

Plans go out and shards come back; image bytes never cross it. To add an engine, add a function to `ENGINES`.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Executor, Future, ProcessPoolExecutor, wait
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypeVar

from dlio.errors import StorageError, UsageError

Task = TypeVar("Task")
Result = TypeVar("Result")


class SerialExecutor(Executor):
    """Runs each call when it is submitted, in the caller's thread."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Returns a finished future."""
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


@contextmanager
def serial(workers: int) -> Iterator[Executor]:
    """Yields an executor that runs in this process, whatever `workers` is."""
    yield SerialExecutor()


@contextmanager
def processes(workers: int) -> Iterator[Executor]:
    """Yields an executor of `workers` processes on this machine.

    They are forked, so a script needs no `if __name__ == "__main__"`, and end with their parent, however that ends.
    """
    pool = ProcessPoolExecutor(
        workers, multiprocessing.get_context("fork"), initializer=_follow_parent, initargs=(os.getpid(),)
    )
    try:
        yield pool
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _follow_parent(parent: int) -> None:
    """Leaves interrupts to the parent, and asks Linux to end this process with it (prctl(2), PR_SET_PDEATHSIG)."""
    import ctypes

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before we asked
        os._exit(1)


ENGINES: dict[str, Callable[[int], AbstractContextManager[Executor]]] = {"processes": processes, "serial": serial}


def open_engine(name: str, workers: int) -> AbstractContextManager[Executor]:
    """Returns the engine of this name with `workers` workers.

    Raises:
        UsageError: there is no such engine.
    """
    if name not in ENGINES:
        raise UsageError(f"{name!r} is no engine: expected one of {', '.join(ENGINES)}")
    return ENGINES[name](workers)


def default_workers() -> int:
    """Returns the number of cores that this process may use."""
    return len(os.sched_getaffinity(0))


def map_bounded(
    executor: Executor, function: Callable[[Task], Result], tasks: Iterable[Task], in_flight: int
) -> Iterator[Result]:
    """Yields results as they finish, with at most `in_flight` tasks submitted at a time.

    `Executor.map` takes all its input at once; this takes tasks as it goes. After an error it takes no more, yields
    what the tasks still running return, and then raises it.

    Raises:
        StorageError: a worker died; names the tasks it may have been working on.
        Exception: whatever `function` raised.
    """
    waiting = iter(tasks)
    running: dict[Future[Result], Task] = {}
    failed: list[tuple[BaseException, Task]] = []
    while True:
        while not failed and len(running) < in_flight and (task := next(waiting, None)) is not None:
            try:
                running[executor.submit(function, task)] = task
            except BrokenExecutor as broken:  # a worker died since the last result
                failed.append((broken, task))
                break
            if any(map(Future.done, running)):  # hand it out before another is run, or waited for
                break
        if not running:
            break
        for future in wait(running, return_when=FIRST_COMPLETED).done:
            task = running.pop(future)
            error = future.exception()
            if error is None:
                yield future.result()
            else:
                failed.append((error, task))
    if failed:
        raise _reason(failed)


def _reason(failed: list[tuple[BaseException, Any]]) -> BaseException:
    errors = [error for error, _ in failed if not isinstance(error, BrokenExecutor)]
    if errors:
        return errors[0]
    names = ", ".join(sorted(str(task) for _, task in failed))
    return StorageError(
        f"a worker died (killed, or out of memory) while at work on {names}: run the same command again, "
        "finished shards are kept; use fewer --workers if memory was short"
    )
