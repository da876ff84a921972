"""An interrupt at any moment ends the command line in one line."""

from __future__ import annotations

import signal
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
AT_EXIT
sys.argv = ["dlio", "info", "/"]
runpy.run_module("dlio", run_name="__main__")
"""


def test_an_interrupt_while_numpy_loads_ends_in_one_line():
    assert interrupted() == (EXIT_INTERRUPTED, "True\n", "dlio: interrupted\n")


def test_a_second_interrupt_while_the_process_ends_prints_nothing_more():
    again = "import atexit; atexit.register(os.kill, os.getpid(), signal.SIGINT)"
    assert interrupted(again) == (-signal.SIGINT, "True\n", "dlio: interrupted\n")


def interrupted(at_exit: str = "") -> tuple[int, str, str]:
    script = INTERRUPTED.replace("AT_EXIT", at_exit)
    process = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    return process.returncode, process.stdout, process.stderr
