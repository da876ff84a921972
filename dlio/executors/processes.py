"""Forked processes of this machine, which end with their parent."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from typing import Any

from dlio.errors import MissingError
from dlio.executors import Pool, num_workers, refuse_address
from dlio.io import limits

_PR_SET_PDEATHSIG = 1
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def open(workers: int | None, address: str | None) -> Iterator[Pool]:  # noqa: A001  the contract's word
    """Yields `workers` processes, by default one for each core that this process may use.

    They are forked, so a script needs no `if __name__ == "__main__"`, and end with their parent, however that ends.

    Raises:
        UsageError: an address is given.
    """
    refuse_address("processes", address)
    workers = num_workers(workers)
    with limits.starting("worker processes"):
        executor = _Processes(
            workers, multiprocessing.get_context("fork"), initializer=_init_worker, initargs=(os.getpid(),)
        )
    try:
        yield Pool(executor, workers, exit_codes=executor.exit_codes)
    except Exception:
        raise
    except BaseException:  # an interrupt: a worker's read may hang; what it wrote is aside
        executor.kill()
        raise
    finally:
        executor.shutdown(wait=True, cancel_futures=True)


@contextmanager
def _deferred_signals() -> Iterator[None]:
    """Handles signals after its body: Python drops what a handler raises in a fork, and half a start leaves threads.

    To block them in this thread is not enough, since the system may give a signal to another thread.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    seen: list[int] = []
    before = {number: signal.signal(number, lambda number, _: seen.append(number)) for number in _SIGNALS}
    try:
        yield
    finally:
        for name, handler in before.items():
            signal.signal(name, handler or signal.SIG_DFL)
        for number in seen:
            signal.raise_signal(number)


class _Processes(ProcessPoolExecutor):
    """Forks workers, at the first task, that no signal meets before they have their own handlers."""

    _launched: tuple[BaseProcess, ...] = ()

    def submit(self, *args: Any, **kwargs: Any) -> Future[Any]:
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        try:
            with _deferred_signals(), limits.starting("a worker process"):
                return super().submit(*args, **kwargs)
        except MissingError:
            self.kill()
            self._executor_manager_thread = None  # type: ignore[assignment]  # not begun, it cannot be joined
            raise
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def _launch_processes(self) -> None:
        """Starts the workers, and then the thread that sends them tasks: started later, it would fail unheard."""
        super()._launch_processes()  # type: ignore[misc]
        self._launched = tuple(self._processes.values())  # the pool forgets them when it is shut down
        self._call_queue._start_thread()  # type: ignore[attr-defined]

    def exit_codes(self) -> list[int]:
        """Returns the exit codes of the workers that ended first: a pool that lost one ends the others by SIGTERM."""
        codes = [process.exitcode for process in self._launched if process.exitcode is not None]
        return [code for code in codes if code != -signal.SIGTERM] or codes

    def kill(self) -> None:
        """Ends the workers at once."""
        for process in tuple((self._processes or {}).values()):
            process.kill()


def _init_worker(parent: int) -> None:
    """Leaves interrupts to the parent, and asks Linux to end this process with it (prctl(2), PR_SET_PDEATHSIG)."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a broken pool ends its workers by it; the parent may handle it
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before we asked
        os._exit(1)
