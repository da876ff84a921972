"""The verb that writes a page about a data set: report."""

from __future__ import annotations

import argparse
from pathlib import Path

import dlio
from dlio.cli.options import count, dataset_argument, local_path
from dlio.cli.output import print_report, say
from dlio.cli.parser import Verbs, add_verb
from dlio.cli.progress import Progress
from dlio.dataset.remote import load
from dlio.errors import EXIT_DONE


def add_verbs(verbs: Verbs) -> None:
    """Adds this verb to the command line."""
    verb = add_verb(verbs, report, "report packed", "report packed -o photos.html --samples 5000")
    dataset_argument(verb)
    verb.add_argument(
        "-o",
        "--out",
        type=local_path,
        default=Path("report.html"),
        metavar="FILE",
        help="the file to write (report.html)",
    )
    verb.add_argument("--samples", type=count, default=20_000, metavar="N", help="read at most N samples (20,000)")


def report(args: argparse.Namespace) -> int:
    """Writes a report about the packed data set DATASET: one HTML file below 1 MB that opens offline.

    The report shows samples of each class, counts of classes, sizes, encodings, mean and standard deviation, shards,
    equal images, skipped and damaged samples, and how well a window shuffle mixes.
    """
    manifest = load(args.dataset)
    with Progress("report", unit="samples", quiet=args.quiet) as progress:
        progress.start(min(manifest.num_samples, args.samples))
        path = dlio.report(manifest, args.out, samples=args.samples, progress=progress.advance)
    if args.json:
        return print_report(args, {"path": str(path), "bytes": path.stat().st_size})
    say(args, str(path))
    return EXIT_DONE
