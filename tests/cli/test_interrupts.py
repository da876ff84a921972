"""An interrupt at any moment ends the command line in one line."""

from __future__ import annotations

import subprocess
import sys

from dlio.errors import EXIT_INTERRUPTED

# Interrupts the command line as it begins to load numpy, and prints whether interrupts are deferred then.
INTERRUPTED = """
import os, runpy, signal, sys
def interrupt(event, arguments):
    if event == "import" and arguments[0] == "numpy":
        print(signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, ()), flush=True)
        os.kill(os.getpid(), signal.SIGINT)
sys.addaudithook(interrupt)
sys.argv = ["dlio", "info", "/"]
runpy.run_module("dlio", run_name="__main__")
"""


def test_an_interrupt_while_numpy_loads_ends_in_one_line():
    process = subprocess.run([sys.executable, "-c", INTERRUPTED], capture_output=True, text=True)
    found = (process.returncode, process.stdout, process.stderr)
    assert found == (EXIT_INTERRUPTED, "True\n", "dlio: interrupted\n")
