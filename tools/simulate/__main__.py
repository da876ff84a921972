"""Simulates staging: python -m tools.simulate --seed 7 --nodes 64 --faults all

The real engine runs in virtual time, on any number of nodes, with faults that the seed draws. The exit code is 1
if a promise broke; then the seed, the fewest faults found that break one, and the end of their trace are printed.
"""

from __future__ import annotations

import argparse
import os
import sys

from dlio.cli.options import count, local_path
from dlio.errors import EXIT_DONE, EXIT_INTERRUPTED, DlioError, UsageError


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tools.simulate", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seed", type=int, default=1, help="decides everything that chance decides")
    parser.add_argument("--schedules", type=count, default=1, help="how many, with this seed and the next ones")
    parser.add_argument("--nodes", type=count, help="5; of many schedules, each seed draws 2 to 5")
    parser.add_argument("--files", type=count, help="8; of many schedules, each seed draws 1 to 8")
    parser.add_argument("--faults", default="all", help="all, none, or names with commas; 'list' prints them")
    parser.add_argument("--replay", metavar="N,N,...", help="only these of the faults that the seed draws")
    parser.add_argument("--until", type=count, metavar="EVENT", help="stop after this event")
    about = "print the last lines of the trace (30 if a promise breaks)"
    parser.add_argument("--trace", type=count, metavar="LINES", help=about)
    parser.add_argument("--svg", type=local_path, metavar="FILE", help="draw the processes and what happened over time")
    parser.add_argument("--version", help="of the sources that printed the seed: an error if they differ")
    return parser


def main(words: list[str] | None = None) -> int:
    """Runs schedules, and returns the exit code: 1 if a promise broke, 130 if it was interrupted before."""
    arguments = _parser().parse_args(words)
    try:
        code = _run(arguments)
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # nobody reads any more
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_DONE
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    except DlioError as error:
        print(error.text, file=sys.stderr)
        return error.exit_code


def _run(arguments: argparse.Namespace) -> int:
    from tools.simulate import faults, report, scenario

    if arguments.faults == "list":
        print(*faults.described(), sep="\n")
        return EXIT_DONE
    if arguments.version not in (None, here := report.version()):
        raise UsageError(
            f"--version {arguments.version}: dlio and the simulator have other sources here ({here}), so the seed "
            "gives another run: check out the commit that printed it, or leave out --version"
        )
    on, outcomes, code = faults.chosen(arguments.faults), list[scenario.Outcome](), EXIT_DONE
    if arguments.schedules == 1:
        size = scenario.sized(arguments.seed, arguments.nodes or 5, arguments.files or 8)
        return int(bool(report.one(arguments.seed, size, on, arguments).broken))
    if arguments.replay or arguments.until or arguments.svg:
        raise UsageError("--replay, --until and --svg are for one schedule: leave out --schedules")
    try:
        outcomes.extend(report.several(on, arguments))
    except KeyboardInterrupt:
        print(f"interrupted after {len(outcomes):,} of {arguments.schedules:,} schedules", file=sys.stderr)
        code = EXIT_INTERRUPTED
    report.sum_up(outcomes)
    return 1 if any(outcome.broken for outcome in outcomes) else code


if __name__ == "__main__":
    sys.exit(main())
