"""The command `dlio`, and `python -m dlio`."""

from __future__ import annotations

import os
import signal
import sys


def main() -> int:
    """Runs the command line and returns its exit code.

    Interrupts are deferred while modules load, until `dlio.cli.main` handles them: within numpy's import an interrupt
    becomes an ImportError with advice on a broken installation.
    """
    for name, mode in {"stdin": "r", "stdout": "w", "stderr": "w"}.items():
        if getattr(sys, name) is None:  # closed by the caller; else the next file gets its number, and what is printed
            setattr(sys, name, open(os.devnull, mode))  # noqa: PTH123, SIM115  until the process ends
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    from dlio.cli import main as run
    from dlio.errors import EXIT_INTERRUPTED

    if (code := run()) == EXIT_INTERRUPTED:  # while threads end, another interrupt ends the process without a traceback
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    return code


if __name__ == "__main__":
    sys.exit(main())
