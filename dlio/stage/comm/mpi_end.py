"""The end of MPI, which waits for lost processes only for a limited time (`MpiChannel.end_mpi`)."""

from __future__ import annotations

import logging
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from dlio.errors import EXIT_INTERRUPTED, StorageError
from dlio.stage.comm.mpi import is_leaving, leave
from dlio.stage.comm.mpi_progress import made_channel

_log = logging.getLogger(__name__)


@contextmanager
def ending_mpi() -> Iterator[None]:
    """Ends MPI after the work in this context, once all processes have come so far; an interrupt does not wait.

    Raises:
        StorageError: other processes are lost, and the work itself raised nothing.
    """
    try:
        try:
            yield
        except Exception as error:
            _end(getattr(error, "exit_code", 1))
            raise
        _end()
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # mpiexec sends more than one
        if "mpi4py.MPI" in sys.modules:
            leave(EXIT_INTERRUPTED)
        raise


def _end(failed_with: int | None = None) -> None:
    """Ends MPI, if this process has started it; raises as `ending_mpi`, unless the work has failed already."""
    channel = made_channel()
    if channel is None or is_leaving():
        return
    try:
        channel.end_mpi()
    except StorageError as error:
        if failed_with is None:
            raise
        leave(failed_with)
        _log.warning("%s", error)
