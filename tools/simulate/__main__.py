"""Simulates staging: python -m tools.simulate --seed 7 --nodes 64 --faults all

The real engine runs in virtual time, on any number of nodes, with faults that the seed draws. The exit code is 1
if a promise broke; then the seed and the events are printed, and the same seed repeats them.
"""

from __future__ import annotations

import argparse
import sys
from contextlib import suppress
from pathlib import Path

from dlio.errors import DlioError, UsageError


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tools.simulate", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seed", type=int, default=1, help="decides everything that chance decides")
    parser.add_argument("--schedules", type=int, default=1, help="how many, with this seed and the next ones")
    parser.add_argument("--nodes", type=int, default=5)
    parser.add_argument("--files", type=int, default=8)
    parser.add_argument("--faults", default="all", help="all, none, or names with commas; 'list' prints them")
    parser.add_argument("--replay", metavar="N,N,...", help="only these of the faults that the seed draws")
    parser.add_argument("--shrink", action="store_true", help="look for the fewest faults that break a promise")
    parser.add_argument("--until", type=int, metavar="EVENT", help="stop after this event")
    parser.add_argument("--trace", type=int, default=0, metavar="LINES", help="print the last lines of the trace")
    parser.add_argument("--svg", type=Path, metavar="FILE", help="draw the processes and what happened over time")
    parser.add_argument("--version", type=int, help="of the simulator that printed the seed")
    return parser


def main(words: list[str] | None = None) -> int:
    """Runs schedules, and returns the exit code."""
    arguments = _parser().parse_args(words)
    try:
        from tools.simulate import faults, report, scenario

        if arguments.faults == "list":
            print(*faults.kinds(), sep="\n")
            return 0
        if arguments.version not in (None, scenario.VERSION):
            raise UsageError(
                f"the seed is of version {arguments.version}, and means something else in {scenario.VERSION}"
            )
        on = faults.chosen(arguments.faults)
        if arguments.schedules == 1:
            return int(bool(report.one(arguments.seed, on, arguments).broken))
        if arguments.replay or arguments.until or arguments.svg:
            raise UsageError("--replay, --until and --svg are for one schedule: leave out --schedules")
        outcomes = list[scenario.Outcome]()
        with suppress(KeyboardInterrupt):
            outcomes.extend(report.several(on, arguments))
        report.sum_up(outcomes)
        return int(any(outcome.broken for outcome in outcomes))
    except DlioError as error:
        print(error.text, file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
