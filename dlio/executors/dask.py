"""A Dask cluster: a running one, or processes of this machine for the time of the run.

    dlio pack photos packed --format tfrecord --engine dask --engine-address tcp://head:8786

All nodes of a cluster need dlio and the same paths. Dask has no authentication: a client that can connect to a
scheduler runs code as its owner. The cluster started here listens on 127.0.0.1, so this includes every user of this
machine.

Dask starts fresh interpreters, so a script that calls this needs `if __name__ == "__main__"`.
"""

from __future__ import annotations

import logging
import signal
import threading
from asyncio import CancelledError
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import BrokenExecutor, Executor, Future, InvalidStateError
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeVar

from dlio.errors import LauncherError, UsageError, needs_package
from dlio.executors import Pool, num_workers, refuse_workers
from dlio.io import world
from dlio.urls import without_credentials

if TYPE_CHECKING:
    import distributed

CONNECT_SECONDS = 30
T = TypeVar("T")
_LOOK_SECONDS = 0.5  # between two checks that the scheduler is still there


@contextmanager
def open(workers: int | None, address: str | None) -> Iterator[Pool]:  # noqa: A001  the contract's word
    """Yields the threads of the cluster at `address`, or `workers` new processes, by default one for each core.

    The local cluster does not run a task again whose worker died. For a cluster at an address, its scheduler decides
    (`distributed.scheduler.allowed-failures`).

    Raises:
        UsageError: an invalid address, or both an address and a number of workers.
        LauncherError: no scheduler answers at the address within 30 s, or it has no workers.
        MissingPackageError: distributed is not installed.
    """
    if address is not None:
        refuse_workers("dask", workers, f"the cluster at {address}")
    with needs_package("distributed", "dask", "the engine dask"):
        import distributed
    with _silence(), ExitStack() as stack:
        if address is None:
            cluster = stack.enter_context(_local_cluster(num_workers(workers)))
            client = stack.enter_context(distributed.Client(cluster, set_as_default=False))
            client.run(_leave_interrupts_to_the_caller)
        else:
            client = stack.enter_context(_connect(address))
        executor = _DaskExecutor(client)
        stack.callback(executor.shutdown)
        num_threads = sum(client.nthreads().values())
        if num_threads == 0:
            raise LauncherError(f"the Dask cluster at {address} has no workers: start some with: dask worker {address}")
        yield Pool(
            executor, num_threads, (distributed.KilledWorker, distributed.comm.core.CommClosedError, BrokenExecutor)
        )


class _DaskExecutor(Executor):
    """Hands tasks to Dask. Dask's own executor loses some tasks when the scheduler or a worker goes away."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._unfinished: set[Future[Any]] = set()
        self._over = threading.Event()
        world.start(self._watch, "dlio-dask")

    def submit(self, fn: Callable[..., T], /, *args: object, **kwargs: object) -> Future[T]:
        """Returns a future for a call, which cannot be cancelled; raises BrokenExecutor without a scheduler."""
        if self._client.status != "running":
            raise _gone()
        task = self._client.submit(fn, *args, pure=False, **kwargs)  # pure: equal tasks would count as one
        future: Future[T] = Future()
        future.set_running_or_notify_cancel()
        self._unfinished.add(future)
        future.add_done_callback(self._unfinished.discard)
        self._client.loop.add_callback(_settle, future, task)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Returns at once; closing the client, which comes next, gives up running tasks."""
        self._over.set()

    def _watch(self) -> None:
        """Fails all futures when the scheduler goes away; Dask itself leaves a few of them waiting forever."""
        while not self._over.wait(_LOOK_SECONDS):
            if self._client.status != "running":
                for future in list(self._unfinished):
                    with suppress(InvalidStateError):
                        future.set_exception(_gone())


async def _settle(future: Future[T], task: Awaitable[T]) -> None:
    """Copies the outcome of Dask's task to `future`, unless it has one."""
    with suppress(InvalidStateError):
        try:
            future.set_result(await task)
        except CancelledError:  # Dask's loop ends
            future.set_exception(_gone())
        except Exception as error:
            future.set_exception(error)


def _gone() -> BrokenExecutor:
    return BrokenExecutor("the connection to the Dask scheduler was lost")


def _leave_interrupts_to_the_caller() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)


@contextmanager
def _silence() -> Iterator[None]:
    """Keeps Dask's log off the console; failures are raised as errors, and a stopping cluster logs a lot."""
    logger, nowhere = logging.getLogger("distributed"), logging.NullHandler()
    propagate, logger.propagate = logger.propagate, False
    logger.addHandler(nowhere)
    try:
        yield
    finally:
        logger.removeHandler(nowhere)
        logger.propagate = propagate


@contextmanager
def _local_cluster(workers: int) -> Iterator[distributed.LocalCluster]:
    import dask
    import distributed

    with (
        dask.config.set({"distributed.scheduler.allowed-failures": 0}),
        distributed.LocalCluster(
            n_workers=workers,
            threads_per_worker=1,
            host="127.0.0.1",
            dashboard_address="127.0.0.1:0",
            scheduler_kwargs={"dashboard": False},
            memory_limit=0,  # otherwise workers are killed for their mapped files
            silence_logs=logging.CRITICAL,
        ) as cluster,
    ):
        yield cluster


def _connect(address: str) -> distributed.Client:
    import distributed

    try:
        distributed.comm.addressing.resolve_address(address)
        return distributed.Client(address, timeout=CONNECT_SECONDS, set_as_default=False)
    except ValueError as error:
        reason = without_credentials(str(error), address)
        raise UsageError(f"{address!r} is not an address of Dask ({reason}): expected tcp://HOST:8786") from None
    except OSError:
        raise LauncherError(f"no Dask scheduler answers at {address}: start one, or correct --engine-address") from None
