"""Engines: one module each, found by name, whose `open` starts workers; the only seam for running in parallel.

Plans go out and results come back; image bytes never cross it. To add an engine, add a module to this folder; it
fulfils `Engine`. Tasks and results are pickled, so an exception that a task raises comes back whole.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import BrokenExecutor, CancelledError, Executor, Future
from contextlib import AbstractContextManager
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, Protocol, TypeVar, cast

from dlio.cluster.cpu_count import num_usable_cores
from dlio.errors import StorageError, UsageError

Task = TypeVar("Task")
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Pool:
    """Workers that wait for tasks.

    Attributes:
        executor: takes the tasks.
        workers: how many tasks it runs at a time.
        died: what its futures raise where a worker died, instead of what a task raised.
    """

    executor: Executor
    workers: int
    died: tuple[type[BaseException], ...] = (BrokenExecutor,)


class Engine(Protocol):
    """What an engine's module holds."""

    def open(self, workers: int | None, address: str | None) -> AbstractContextManager[Pool | None]:
        """Starts the workers, and ends them when the context is left, however it is left.

        Args:
            workers: how many; by default as many as the engine finds room for.
            address: a cluster that is there already.

        Yields the pool; None in a process that was itself a worker, when its work is done (see `mpi`). A task runs
        once: an engine does not run it again when its worker dies, for the dead may still be writing.

        Raises:
            UsageError: `workers` or `address` are not this engine's to choose.
            MissingPackageError: the engine's own package is not installed.
            LauncherError: there is no cluster, or no launcher has started this process.
        """


class ReportedElsewhereError(Exception):
    """The cause of an error that another process reports: it is to be raised here too, and not printed again."""


def names() -> list[str]:
    """Returns the names of the engines in this folder, sorted."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__) if not module.name.startswith("_"))


def open_engine(
    name: str, workers: int | None = None, address: str | None = None
) -> AbstractContextManager[Pool | None]:
    """Returns the context of the engine of this name, as `Engine.open`.

    Raises:
        UsageError: there is no such engine.
    """
    if name not in names():
        raise UsageError(f"{name!r} is no engine: expected one of {', '.join(names())}")
    return cast(Engine, importlib.import_module(f"{__name__}.{name}")).open(workers, address)


def refuse_address(engine: str, address: str | None) -> None:
    """Checks that no address is given to an engine that needs none.

    Raises:
        UsageError: there is one.
    """
    if address is not None:
        raise UsageError(f"the engine {engine} takes no address, given {address!r}: leave --engine-address out")


def refuse_workers(engine: str, workers: int | None, giver: str) -> None:
    """Checks that the number of workers is left to `giver`.

    Raises:
        UsageError: it is given.
    """
    if workers is not None:
        raise UsageError(f"the engine {engine} has the workers of {giver}, given {workers}: leave --workers out")


def num_workers(workers: int | None) -> int:
    """Returns the number of workers asked for, by default one for each core that this process may use.

    Raises:
        UsageError: `workers` is no number of them.
    """
    if workers is None:
        return num_usable_cores()
    if not isinstance(workers, int) or workers < 1:
        raise UsageError(f"the number of workers is a whole number from 1, found {workers!r}")
    return workers


def map_bounded(pool: Pool, function: Callable[[Task], Result], tasks: Iterable[Task]) -> Iterator[Result]:
    """Yields results as they finish, with at most two tasks a worker submitted at a time: one runs, one waits.

    `Executor.map` takes all its input at once; this takes tasks as it goes. After an error it takes no more, yields
    what the tasks submitted return, and then raises it. A pool that has lost a worker for good is closed by then.

    Raises:
        StorageError: a worker died; names the tasks it may have been working on.
        Exception: whatever `function` raised.
    """
    waiting = iter(tasks)
    running: dict[Future[Result], Task] = {}
    finished: SimpleQueue[Future[Result]] = SimpleQueue()  # an interrupt of `wait` may leave futures locked for ever
    failed: list[tuple[BaseException, Task]] = []
    while True:
        while not failed and len(running) < 2 * pool.workers and (task := next(waiting, None)) is not None:
            try:
                future = pool.executor.submit(function, task)
            except pool.died as broken:  # a worker died since the last result
                failed.append((broken, task))
                break
            running[future] = task
            future.add_done_callback(finished.put)
            if not finished.empty():  # hand it out before another is run, or waited for
                break
        if not running:
            break
        future = finished.get()
        task = running.pop(future)
        error = _error(future)
        if error is None:
            yield future.result()
        else:
            failed.append((error, task))
    if any(isinstance(error, BrokenExecutor) for error, _ in failed):
        pool.executor.shutdown(wait=True)  # its other workers are ended too, and write no more when the error comes
    if failed:
        raise _reason(failed, pool.died)


def _error(future: Future[Any]) -> BaseException | None:
    """Returns what a finished future raised; one that its engine gave up raised CancelledError."""
    try:
        return future.exception()
    except CancelledError as error:
        return error


def _reason(failed: list[tuple[BaseException, Any]], died: tuple[type[BaseException], ...]) -> BaseException:
    raised = [error for error, _ in failed if not isinstance(error, (*died, CancelledError))]
    if raised:
        return raised[0]
    names = ", ".join(sorted(str(task) for _, task in failed))
    return StorageError(
        f"a worker died (killed, or out of memory) while at work on {names}: run the same command again, "
        "finished shards are kept; use fewer --workers if memory was short"
    )
