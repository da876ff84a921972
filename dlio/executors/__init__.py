"""Engines: one module each, found by name, whose `open` starts workers. All work in parallel goes through an engine.

An engine carries plans and results, never image bytes. Tasks and results are pickled, so an exception that a task
raises comes back whole. To add an engine, add a module to this folder, or give the dotted path of a module of another
package as the engine's name; it fulfils `Engine`.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import BrokenExecutor, CancelledError, Executor, Future
from contextlib import AbstractContextManager
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Protocol, TypeVar, cast

from dlio.errors import StorageError, UsageError
from dlio.io import extensions
from dlio.io.limits import num_usable_cores

Task = TypeVar("Task")
Result = TypeVar("Result")
_CRASHES = {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT}  # that faulthandler handles


@dataclass(frozen=True, slots=True)
class Pool:
    """Workers that wait for tasks.

    Attributes:
        executor: takes the tasks.
        workers: the number of tasks that run at a time.
        died: the exceptions of its futures that mean that a worker died.
        exit_codes: returns the exit codes of the workers that died, as `multiprocessing.Process.exitcode`, once the
            executor is shut down; none if the engine cannot know them.
    """

    executor: Executor
    workers: int
    died: tuple[type[BaseException], ...] = (BrokenExecutor,)
    exit_codes: Callable[[], Collection[int]] = tuple


class Engine(Protocol):
    """The contents of an engine's module."""

    def open(self, workers: int | None, address: str | None) -> AbstractContextManager[Pool | None]:
        """Starts the workers, and ends them when the context is left, for whatever reason.

        The context gives the pool. In a process that was a worker itself it gives None, after its work (see `mpi`).
        A task runs only once: if its worker dies, the engine does not run it again, since the worker may still write.

        Args:
            workers: the number of workers; by default as many as the engine has room for.
            address: the address of a running cluster.

        Raises:
            UsageError: the engine does not take `workers` or `address`.
            MissingPackageError: the engine's own package is not installed.
            LauncherError: there is no cluster, or no launcher has started this process.
        """


class ReportedElsewhereError(Exception):
    """The cause of an error that another process prints; this process raises the error and does not print it."""


def names() -> list[str]:
    """Returns the names of dlio's own engines, sorted."""
    return extensions.names(__path__)


def load(name: str) -> Engine:
    """Returns the engine of this name, or the module of this dotted path; raises UsageError if there is none."""
    return cast(Engine, extensions.load(name, "an engine", __name__, names(), ["open"]))


def open_engine(
    name: str, workers: int | None = None, address: str | None = None
) -> AbstractContextManager[Pool | None]:
    """Returns the context of the engine `name`, as `Engine.open`; raises as `load`."""
    return load(name).open(workers, address)


def refuse_address(engine: str, address: str | None) -> None:
    """Raises UsageError if an address is given to an engine that takes none."""
    if address is not None:
        raise UsageError(f"the engine {engine} accepts no address, given {address!r}: leave --engine-address out")


def refuse_workers(engine: str, workers: int | None, giver: str) -> None:
    """Raises UsageError if a number of workers is given to an engine that takes the workers of `giver`."""
    if workers is not None:
        raise UsageError(f"the engine {engine} uses the workers of {giver}, given {workers}: leave --workers out")


def num_workers(workers: int | None) -> int:
    """Returns the number of workers, by default one for each usable core; raises UsageError for one below 1."""
    if workers is None:
        return num_usable_cores()
    if not isinstance(workers, int) or workers < 1:
        raise UsageError(f"the number of workers must be a whole number >= 1, found {workers!r}")
    return workers


def map_bounded(pool: Pool, function: Callable[[Task], Result], tasks: Iterable[Task]) -> Iterator[Result]:
    """Yields results as they finish, with at most two submitted tasks for each worker: one runs, one waits.

    `Executor.map` takes all tasks at once; this takes them as workers become free. After an error it takes no more
    tasks, yields the results of those submitted, and then raises the error. By then, a pool that lost a worker
    permanently is closed.

    Raises:
        StorageError: a worker died; names the tasks that it may have been working on, and how it ended.
        Exception: whatever `function` raised.
    """
    waiting = iter(tasks)
    running: dict[Future[Result], Task] = {}
    finished: SimpleQueue[Future[Result]] = SimpleQueue()  # an interrupt of `wait` may leave futures locked forever
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
            if not finished.empty():  # yield it before another task runs or is waited for
                break
        if not running:
            break
        future = finished.get()
        task, error = running.pop(future), _error(future)
        if error is None:
            yield future.result()
        else:
            failed.append((error, task))
    if any(isinstance(error, BrokenExecutor) for error, _ in failed):
        pool.executor.shutdown(wait=True)  # ends the other workers too, so that nothing writes after the error
    if failed:
        raise _reason(failed, pool)


def _error(future: Future[Result]) -> BaseException | None:
    """Returns the exception of a finished future, CancelledError if its engine gave it up."""
    try:
        return future.exception()
    except CancelledError as error:
        return error


def _reason(failed: list[tuple[BaseException, Task]], pool: Pool) -> BaseException:
    """Returns the first error that a task raised, else an error that names the tasks of the workers that died."""
    raised = [error for error, _ in failed if not isinstance(error, (*pool.died, CancelledError))]
    if raised:
        return raised[0]
    at_work_on = ", ".join(sorted(str(task) for _, task in failed))
    ends, advice = _ends(pool.exit_codes())
    return StorageError(
        f"a worker died ({ends}) while working on {at_work_on}: run the same command again, finished shards are kept"
        + advice
    )


def _ends(exit_codes: Collection[int]) -> tuple[str, str]:
    """Returns how workers ended, and what more to do about that."""
    signals = {-code for code in exit_codes if code < 0}
    advice = "; use fewer --workers if memory was short" if not exit_codes or signal.SIGKILL in signals else ""
    if signals & _CRASHES:
        advice += "; PYTHONFAULTHANDLER=1 shows where it crashed"
    ends = sorted(_signal_name(code) for code in signals)
    ends += [f"exit status {code}" for code in sorted(set(exit_codes)) if code >= 0]
    return " and ".join(ends) or "crashed, killed, or out of memory", advice


def _signal_name(number: int) -> str:
    if number == signal.SIGKILL:
        return "SIGKILL: killed, or out of memory"
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"
