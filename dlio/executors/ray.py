"""A Ray cluster: a running one, or processes of this machine for the time of the run.

    dlio pack photos packed --format tfrecord --engine ray --engine-address auto

All nodes of a cluster need dlio and the same paths. Ray started here takes some seconds to start. It listens on all
network interfaces, so it gets a random token that only its own processes know. Ray before 2.52 has no tokens: a client
that can connect runs code. Ray ends with this process; if the process is killed, two of Ray's agents run for about a
minute more. For a cluster that needs a token, set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from dlio.errors import LauncherError, needs_package
from dlio.executors import Pool, num_workers, refuse_workers
from dlio.urls import without_credentials

if TYPE_CHECKING:
    import ray.remote_function

CONNECT_SECONDS = 30
T = TypeVar("T")
_OBJECT_STORE_BYTES = 100 << 20  # near Ray's minimum of 75 MiB; it holds only plans and results


@contextmanager
def open(workers: int | None, address: str | None) -> Iterator[Pool]:  # noqa: A001  the contract's word
    """Yields the processors of the cluster at `address`, or of a new one with `workers`, by default one for each core.

    A connection of this process to Ray is used, and stays open.

    Raises:
        UsageError: both a cluster and a number of workers.
        LauncherError: there is no cluster at the address.
        MissingPackageError: ray is not installed.
    """
    if address is None:
        _set_token()
    else:
        refuse_workers("ray", workers, f"the cluster at {address}")
    with needs_package("ray", "ray", "the engine ray"):
        import ray
    connected = ray.is_initialized()
    if connected:
        refuse_workers("ray", workers, "the cluster in use")
    else:
        _connect(address) if address else _start(num_workers(workers))
    try:
        executor = _RayExecutor(ray.remote(max_retries=0)(_call))
        yield Pool(executor, max(1, int(ray.cluster_resources().get("CPU", 0))), (ray.exceptions.RayError,))
    finally:
        if not connected:
            ray.shutdown()


def _set_token() -> None:
    """Makes Ray require a random token; Ray reads these variables when it is imported."""
    if "ray" not in sys.modules:
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
        os.environ.setdefault("RAY_AUTH_MODE", "token")


def _start(workers: int) -> None:
    import ray

    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    ray.init(
        "local",
        num_cpus=workers,
        include_dashboard=False,
        object_store_memory=_OBJECT_STORE_BYTES,
        log_to_driver=False,
        logging_level=logging.ERROR,
    )


def _connect(address: str) -> None:
    import ray

    try:
        _check_answer(address)
        ray.init(address, log_to_driver=False, logging_level=logging.ERROR)
    except (OSError, RuntimeError, ValueError) as error:
        cause = error.__cause__ or error  # for instance that the cluster needs a token
        reason = without_credentials(str(cause), address)
        raise LauncherError(f"there is no Ray cluster at {address!r}: {reason}; expected auto or HOST:6379") from None


def _check_answer(address: str) -> None:
    """Raises OSError if nobody listens; Ray itself would try for minutes."""
    host, colon, port = address.rpartition("//")[2].rpartition(":")
    if colon and port.isdigit():
        socket.create_connection((host, int(port)), CONNECT_SECONDS).close()


class _RayExecutor(Executor):
    """Hands tasks to Ray, which has no executor of its own; a submitted task cannot be cancelled."""

    def __init__(self, remote: ray.remote_function.RemoteFunction) -> None:
        self._remote = remote

    def submit(self, fn: Callable[..., T], /, *args: object, **kwargs: object) -> Future[T]:
        future: Future[T] = Future()
        future.set_running_or_notify_cancel()
        self._remote.remote(fn, *args, **kwargs).future().add_done_callback(partial(_settle, future))
        return future


def _call(function: Callable[..., T], *args: object, **kwargs: object) -> T:
    return function(*args, **kwargs)


def _settle(future: Future[T], done: Future[T]) -> None:
    """Copies the outcome of Ray's future to `future`; an error of the task comes without Ray's wrapper."""
    error = done.exception()
    if error is None:
        future.set_result(done.result())
    else:
        future.set_exception(getattr(error, "cause", None) or error)
