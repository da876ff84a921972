"""The verb that checks this machine: doctor."""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict

import dlio
from dlio.cli.options import local_path, path_or_url
from dlio.cli.output import GREEN, RED, YELLOW, painted, print_report, say
from dlio.cli.parser import Verbs, add_verb
from dlio.errors import EXIT_DONE, MissingError
from dlio.look.checks.finding import Finding, State

_COLOURS = {State.GOOD: GREEN, State.CHANGE: YELLOW, State.BROKEN: RED}


def add_verbs(verbs: Verbs) -> None:
    """Adds this verb to the command line."""
    verb = add_verb(verbs, doctor, "doctor", "doctor packed /local --json")
    verb.add_argument("dataset", metavar="DATASET", nargs="?", type=path_or_url, help="a packed data set to check, too")
    verb.add_argument("dest", metavar="DEST", nargs="?", type=local_path, help="the folder to stage to")


def doctor(args: argparse.Namespace) -> int:
    """Checks this machine for dlio: each line says `good`, or what to change.

    Checks the compiled core, packages, launcher, cores, memory, local storage, MPI, and leftovers of dead jobs, within
    15 s. The exit code is 0 unless something cannot work.
    """

    def show(finding: Finding) -> None:
        advice = f" -> {finding.advice}" if finding.advice else ""
        mark = painted(f"{finding.state.name.lower():7}", _COLOURS[finding.state], sys.stdout)
        say(args, f"{finding.check + ':':15} {finding.found}{advice}", mark)

    found = dlio.doctor(args.dataset, args.dest, report=show)
    if args.json:
        print_report(args, {"findings": [asdict(finding) for finding in found]})
    broken = any(finding.state is State.BROKEN for finding in found)
    return MissingError.exit_code if broken else EXIT_DONE
