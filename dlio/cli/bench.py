"""The verb that measures how fast this machine reads, decodes and loads a data set: bench."""

from __future__ import annotations

import argparse
import re
from dataclasses import asdict

import dlio
from dlio import images
from dlio.cli.options import chosen, dataset_argument, local_path
from dlio.cli.output import print_report, say
from dlio.cli.parser import Verbs, add_verb
from dlio.errors import EXIT_DONE, UsageError
from dlio.io.sizes import format_size

_TRANSFORMS = ("RandomResizedCrop", "CenterCrop", "Resize")


def add_verbs(verbs: Verbs) -> None:
    """Adds this verb to the command line."""
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
    options = {"flip": True} if match[1] == "RandomResizedCrop" else {}
    try:
        return getattr(images, match[1])(int(match[2]), **options)
    except UsageError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
