"""The verbs about this machine: bench, doctor."""

from __future__ import annotations

import argparse
import re
import sys
from dataclasses import asdict

import dlio
from dlio.cli.options import chosen, dataset_argument, local_path, path_or_url
from dlio.cli.output import GREEN, RED, YELLOW, painted, print_report, say
from dlio.cli.parser import Verbs, add_verb
from dlio.errors import EXIT_DONE, MissingError, UsageError
from dlio.io.sizes import format_size
from dlio.look.checks.finding import Finding, State

_TRANSFORMS = ("RandomResizedCrop", "CenterCrop", "Resize")
_COLOURS = {State.GOOD: GREEN, State.CHANGE: YELLOW, State.BROKEN: RED}


def add_verbs(verbs: Verbs) -> None:
    """Adds these verbs to the command line."""
    verb = add_verb(verbs, bench, "bench packed", "bench packed /local --transform CenterCrop:256")
    dataset_argument(verb)
    verb.add_argument(
        "dest",
        metavar="DEST",
        nargs="?",
        type=local_path,
        help="the local folder to measure (default: the one that dlio stage chooses)",
    )
    known = ", ".join(_TRANSFORMS)
    verb.add_argument(
        "--transform",
        type=_transform,
        metavar="NAME:SIZE",
        help=f"the transform to measure: {known} (default: RandomResizedCrop:224)",
    )
    ready = "also measure dlio pack --decode-ready: the time to decode a crop of each form, and the sizes"
    verb.add_argument("--decode-ready", action="store_true", help=ready)
    verb = add_verb(verbs, doctor, "doctor", "doctor packed /local --json")
    verb.add_argument("dataset", metavar="DATASET", nargs="?", type=path_or_url, help="a packed data set to check, too")
    verb.add_argument("dest", metavar="DEST", nargs="?", type=local_path, help="the folder to stage to")


def bench(args: argparse.Namespace) -> int:
    """Measures in a minute how fast storage, a local folder, decoding and loading are on this machine.

    Prints how many threads to use, what limits the loader, and whether staging pays. Writes the rates of storage to the
    file named at the end; `plan` and `stage --strategy auto` use them.
    """

    def show(name: str, rate: float, unit: str) -> None:
        shown = f"{format_size(rate)}/s" if unit == "B/s" else f"{rate:,.0f} {unit}"
        say(args, f"{name:20} {shown if rate else 'none'}")

    found = dlio.bench(**chosen(args, "dataset", "dest", "transform", "decode_ready"), report=show)
    if args.json:
        return print_report(args, asdict(found) | {"num_threads": found.num_threads, "verdict": found.verdict()})
    if found.local:
        say(args, f"local is {found.local}")
    for line in found.verdict():
        say(args, line)
    if found.rates:
        say(args, f"plan and stage use these rates of storage, from {found.rates}")
    return EXIT_DONE


def _transform(text: str) -> object:
    """Returns a transform such as `CenterCrop:224`; RandomResizedCrop also flips."""
    match = re.fullmatch(rf"({'|'.join(_TRANSFORMS)}):([0-9]{{1,5}})", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r}: expected {', '.join(_TRANSFORMS)} with a size, as in Resize:224")
    from dlio import images  # here: doctor needs as little as can be

    options = {"flip": True} if match[1] == "RandomResizedCrop" else {}
    try:
        return getattr(images, match[1])(int(match[2]), **options)
    except UsageError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


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
