"""Arguments shared by several verbs."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, TypeAlias

from dlio import executors
from dlio.dataset.location import NO_PATH
from dlio.errors import UsageError
from dlio.executors import Pool
from dlio.io.sizes import parse_size
from dlio.urls import is_url, shown

OF_DATASET = "the folder or URL that holds manifest.jsonl"
OF_ANYTHING = f"{OF_DATASET}, or any other file (also at a URL) or folder"
#: What an option is added to: a verb's parser, or a group of its options.
Options: TypeAlias = argparse._ActionsContainer


def local_path(text: str) -> Path:
    """Returns a path, as an argument's type; refuses a URL, which pathlib would turn into a path."""
    if is_url(text):
        raise argparse.ArgumentTypeError(f"{shown(text)} is a URL: give a path")
    return Path(_given(text))


def path_or_url(text: str) -> Path | str:
    """Returns a path, or an unchanged URL, as an argument's type."""
    return text if is_url(text) else Path(_given(text))


def _given(text: str) -> str:
    if not text:
        raise argparse.ArgumentTypeError(NO_PATH)
    return text


def dataset_argument(verb: argparse.ArgumentParser, about: str = OF_DATASET) -> None:
    """Adds DATASET."""
    verb.add_argument("dataset", metavar="DATASET", type=path_or_url, help=about)


def known_values(verb: Options, option: str, values: Sequence[str], **keywords: Any) -> None:
    """Adds an option that accepts these values and others; shells complete the values."""
    verb.add_argument(option, **keywords).values = values  # type: ignore[attr-defined]


def workers_option(verb: Options) -> None:
    """Adds --workers."""
    verb.add_argument("--workers", type=count, metavar="N", help="number of processes (default: one per core)")


def engine_options(verb: Options) -> None:
    """Adds --workers, --engine and --engine-address, which `open_pool` reads."""
    verb.add_argument("--workers", type=count, metavar="N", help="number of workers (default: one per core)")
    engines = executors.names()
    about = f"the engine that runs the workers: {', '.join(engines)}, or a module's dotted path (default: processes)"
    known_values(verb, "--engine", engines, default="processes", metavar="ENGINE", help=about)
    verb.add_argument(
        "--engine-address", metavar="A", help="a running dask, ray or spark cluster (default: a local one)"
    )


def chosen(args: argparse.Namespace, *names: str) -> dict[str, Any]:
    """Returns the values of these options, as keywords of the library function of the verb."""
    return {name: getattr(args, name) for name in names}


def open_pool(args: argparse.Namespace) -> AbstractContextManager[Pool | None]:
    """Returns the context of the engine; a dry run needs no workers, except that in an MPI job only one rank plans."""
    engine = executors.load(args.engine)
    if args.dry_run and args.engine != "mpi":
        return executors.open_engine("serial")
    return engine.open(args.workers, args.engine_address)


def count(text: str) -> int:
    """Returns a number >= 1, as an option's type."""
    if not text.isdigit() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number >= 1")
    return int(text)


def seconds(text: str) -> float:
    """Returns a number of seconds, as an option's type."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0")
    return number


def octal(text: str) -> int:
    """Returns permission bits, as an option's type."""
    try:
        return int(text, 8)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not an octal number such as 644") from None


def name_and_value(text: str) -> tuple[str, str]:
    """Returns the two sides of NAME=VALUE, as an option's type."""
    name, equals, value = text.partition("=")
    if not (name.isidentifier() and equals):
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form NAME=VALUE")
    return name, value


def size(text: str) -> int:
    """Returns a size in bytes, as an option's type."""
    try:
        return parse_size(text)
    except UsageError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def above_0(text: str) -> int:
    """Returns a size of at least one byte, as an option's type."""
    number = size(text)
    if not number:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size above 0")
    return number
