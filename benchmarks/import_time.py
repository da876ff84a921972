"""Measures how long `import dlio` and `dlio --help` take, each in fresh interpreters: the least of some runs.

    python benchmarks/import_time.py [--runs 20]

The aim is 0.15 s for the import: the command line and every worker wait for it.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time

COMMANDS = {
    "python -c pass": ["-c", "pass"],
    "import dlio": ["-c", "import dlio"],
    "import dlio.loaders.dataset": ["-c", "import dlio.loaders.dataset"],
    "dlio --help": ["-m", "dlio", "--help"],
}


def seconds(arguments: list[str]) -> float:
    """Returns how long a fresh interpreter takes."""
    began = time.perf_counter()
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


def main() -> None:
    """Prints a line for each command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20)
    runs = parser.parse_args().runs
    best = {name: min(seconds(arguments) for _ in range(runs)) for name, arguments in COMMANDS.items()}
    for name, least in best.items():
        print(f"{name:30} {least:6.3f} s")


if __name__ == "__main__":
    main()
