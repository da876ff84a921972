"""The verbs that show what a data set holds: report, show."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dlio
from dlio.cli.options import count, dataset_argument, local_path
from dlio.cli.output import complain, print_report, say, unmistakable
from dlio.cli.parser import Verbs, add_verb
from dlio.cli.progress import Progress
from dlio.dataset.remote import load
from dlio.errors import EXIT_DONE, EXIT_SKIPPED, DataError, needs_package
from dlio.io.sizes import format_size
from dlio.look.show import Shown, write

_COLUMNS = 48


def add_verbs(verbs: Verbs) -> None:
    """Adds these verbs to the command line."""
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
    verb = add_verb(verbs, show, "show packed", "show packed --class cat --count 20 --out cats")
    dataset_argument(verb)
    verb.add_argument(
        "index",
        metavar="INDEX",
        type=int,
        nargs="*",
        default=(),
        help="sample numbers (default: --count samples, evenly spaced)",
    )
    verb.add_argument("--class", dest="class_", metavar="C", help="samples of this class, by its name or number")
    verb.add_argument("--count", type=count, default=8, metavar="N", help="show at most N samples (8)")
    verb.add_argument("--out", type=local_path, metavar="FOLDER", help="write the stored images here instead")


def show(args: argparse.Namespace) -> int:
    """Shows images of the packed data set DATASET in the terminal, or writes them to files.

    Terminals with kitty or sixel graphics show pixels; others show half blocks. Without a terminal, a line per image is
    printed: number, key, class, encoding, size.
    """
    draw = _drawing() if _has_terminal() and not (args.out or args.json or args.quiet) else None
    lines, damaged = [], False
    for shown in dlio.show(args.dataset, args.index, class_=args.class_, count=args.count):
        path = write(shown, args.out) if args.out else None
        lines.append({name: getattr(shown, name) for name in ("number", "key", "label", "num_bytes", "about")})
        lines[-1] |= {"path": str(path)} if path else {}
        label = f", {unmistakable(shown.label)}" if shown.label else ""
        what = f"{shown.number}: {unmistakable(shown.key)}{label}, {shown.about}, {format_size(shown.num_bytes)}"
        say(args, f"{what}{f' -> {path}' if path else ''}")
        damaged |= draw is not None and not _drawn(shown, draw)
    if args.json:
        print_report(args, {"samples": lines})
    return EXIT_SKIPPED if damaged else EXIT_DONE


def _has_terminal() -> bool:
    """Returns whether the output is a terminal that says how large it is."""
    try:
        return sys.stdout.isatty() and os.get_terminal_size(sys.stdout.fileno()).columns > 0
    except (OSError, ValueError):
        return False


def _drawing() -> Callable[[object], None]:
    """Returns a function that draws an image as well as this terminal can."""
    with needs_package("textual-image", "terminal", "dlio show in a terminal (or give --out)"):
        from rich.console import Console
        from textual_image.renderable import Image
    logging.getLogger("textual_image").setLevel(logging.ERROR)  # it logs a traceback if a terminal does not answer
    console = Console()

    def draw(image: Any) -> None:
        console.print(Image(image, width=min(_COLUMNS, console.width), height="auto"))

    return draw


def _drawn(shown: Shown, draw: Callable[[object], None]) -> bool:
    """Draws a sample's image; returns False if it cannot be decoded."""
    try:
        if (image := shown.image) is not None:
            draw(image)
    except DataError as error:
        complain(str(error))
        return False
    return True


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
