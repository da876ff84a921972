"""Arguments that several verbs share, and how a verb joins the command line."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dlio.errors import UsageError
from dlio.sizes import parse_size


def add_verb(verbs: Any, function: Callable[[argparse.Namespace], int]) -> argparse.ArgumentParser:
    """Returns the new parser of the verb that `function` is named after and documents."""
    text = (function.__doc__ or "").strip()
    first, _, rest = text.partition("\n")
    verb: argparse.ArgumentParser = verbs.add_parser(function.__name__, help=first, description=f"{first} {rest}")
    verb.set_defaults(function=function)
    verb.add_argument("--json", action="store_true", help="print the report as one JSON object")
    verb.add_argument("--quiet", action="store_true", help="print errors only")
    return verb


def dataset_argument(verb: argparse.ArgumentParser) -> None:
    """Adds DATASET."""
    verb.add_argument("dataset", metavar="DATASET", type=Path, help="the folder that holds manifest.jsonl")


def workers_option(verb: argparse.ArgumentParser) -> None:
    """Adds --workers."""
    verb.add_argument("--workers", type=count, metavar="N", help="processes to use (default: one a core)")


def count(text: str) -> int:
    """Returns a number from 1, as an option's type."""
    if not text.isdigit() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 1")
    return int(text)


def size(text: str) -> int:
    """Returns a size in bytes, as an option's type."""
    try:
        return parse_size(text)
    except UsageError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
