"""The command `dlio`, and `python -m dlio`."""

from __future__ import annotations

import signal
import sys


def main() -> int:
    """Runs the command line and returns its exit code.

    Interrupts are deferred while modules load, until `dlio.cli.main` handles them: within numpy's import an interrupt
    becomes an ImportError with advice on a broken installation.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    from dlio.cli import main as run
    from dlio.errors import EXIT_INTERRUPTED

    if (code := run()) == EXIT_INTERRUPTED:  # while threads end, another interrupt ends the process without a traceback
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    return code


if __name__ == "__main__":
    sys.exit(main())
