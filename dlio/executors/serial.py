"""No workers: each task runs when it is submitted, in the caller's thread."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from typing import TypeVar

from dlio.executors import Pool, refuse_address

T = TypeVar("T")


@contextmanager
def open(workers: int | None, address: str | None) -> Iterator[Pool]:  # noqa: A001  the contract's word
    """Yields one worker, this process, whatever `workers` is; raises UsageError for an address."""
    refuse_address("serial", address)
    yield Pool(_SerialExecutor(), 1)


class _SerialExecutor(Executor):
    def submit(self, fn: Callable[..., T], /, *args: object, **kwargs: object) -> Future[T]:
        future: Future[T] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future
