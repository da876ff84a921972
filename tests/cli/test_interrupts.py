"""An interrupt at any moment ends the command line in one line."""

from __future__ import annotations

import signal
import subprocess
import sys

from dlio.errors import EXIT_INTERRUPTED


def test_an_interrupt_while_modules_load_ends_in_one_line():
    command = [sys.executable, "-X", "importtime", "-m", "dlio", "info", "/"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        while "numpy" not in process.stderr.readline():  # -X importtime prints each module as soon as it is loaded
            assert process.poll() is None, "numpy was never loaded"
        process.send_signal(signal.SIGINT)
        said = [line for line in process.stderr if not line.startswith("import time:")]
    assert (process.returncode, said) == (EXIT_INTERRUPTED, ["dlio: interrupted\n"])
