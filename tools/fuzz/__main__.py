"""Fuzzes a reader of dlio: python -m tools.fuzz TARGET [--runs N] [--seed N] [--out FOLDER] [--blind] [INPUT ...]

Run it in a checkout. With the package atheris the search is guided by the coverage of dlio's Python code; with --blind,
or without it, inputs are drawn from the seeds alone, the same ones for equal seeds. INPUTs are run instead, once each.
Findings lie in FOLDER/findings, each with its traceback; the exit code is 1 where there are any.
"""

from __future__ import annotations

import argparse
import sys
from contextlib import nullcontext
from pathlib import Path

from tools.fuzz import coverage


def main() -> int:
    """Fuzzes and returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tools.fuzz", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("target", help="what is fuzzed; 'list' prints the targets")
    parser.add_argument("inputs", nargs="*", type=Path)
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("fuzz-out"))
    parser.add_argument("--blind", action="store_true")
    arguments = parser.parse_intermixed_args()
    guided = coverage.available and not arguments.blind and not arguments.inputs
    with coverage.counted() if guided else nullcontext():  # before anything of dlio is imported
        from tools.fuzz.session import Session, names

        if arguments.target not in names():
            print(*names(), sep="\n")
            return 0 if arguments.target == "list" else 2
        session = Session(arguments.target, arguments.out, arguments.seed)
        if arguments.inputs:
            return session.replay(arguments.inputs)
        session.run_seeds()
    return session.run_guided(arguments.runs) if guided else session.run_blindly(arguments.runs)


if __name__ == "__main__":
    sys.exit(main())
