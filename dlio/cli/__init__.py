"""The command `dlio`: each verb is a short function over the library function of its name."""

from __future__ import annotations

import argparse
import importlib
import io
import logging
import os
import signal
import sys
from contextlib import suppress
from itertools import takewhile

from dlio.io import limits

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # numpy's BLAS, never used here, would start threads that spin

from dlio import __version__
from dlio.cli.output import complain, complain_as_json, log_handler
from dlio.cli.parser import OF_ALL_VERBS, SHELLS, ArgumentsError, Parser, PrintCompletion
from dlio.errors import (
    EXIT_DONE,
    EXIT_INTERRUPTED,
    DlioError,
    MissingError,
    MissingPackageError,
    StorageError,
)
from dlio.executors import ReportedElsewhereError

#: The verbs of each module of this package.
VERBS = {
    "pack": ("pack", "convert"),
    "sets": ("split", "select", "merge"),
    "info": ("info", "order"),
    "verify": ("verify",),
    "index": ("index",),
    "mount": ("mount",),
    "stage": ("stage",),
    "clean": ("clean",),
    "plan": ("plan",),
    "look": ("report", "show"),
    "machine": ("bench", "doctor"),
}


def parser(verb: str | None = None) -> argparse.ArgumentParser:
    """Returns the parser of the whole command line; for a known `verb` or --version, of no more than that."""
    about = "Packs, stages and feeds data sets of many small images."
    top = Parser(prog="dlio", description=about, epilog="dlio VERB --help prints the options of a verb, with examples.")
    top.add_argument("--version", action="version", version=f"dlio {__version__}")
    completion = 'print the completion script: eval "$(dlio --print-completion bash)"'
    top.add_argument("--print-completion", action=PrintCompletion, choices=SHELLS, help=completion)
    verbs = top.add_subparsers(metavar="VERB", required=True)
    needed = [name for name, own in VERBS.items() if verb in own]
    for name in needed or (VERBS if verb != "--version" else ()):
        importlib.import_module(f"{__name__}.{name}").add_verbs(verbs)
    return top


def main(argv: list[str] | None = None) -> int:
    """Runs the command line and returns its exit code; an error is one line on stderr, with --json one JSON object."""
    argv = _verb_first(sys.argv[1:] if argv is None else argv)
    args = argparse.Namespace()
    try:
        return _run(argv, args)
    except BrokenPipeError:
        _discard_output()
        return EXIT_DONE
    except (Exception, KeyboardInterrupt) as error:
        problem, code = _explained(error, args)
        if isinstance(error.__cause__, ReportedElsewhereError):
            return code  # another process of the same job prints it
        if "--json" in takewhile("--".__ne__, argv):
            complain_as_json(problem, type(error).__name__, code)
        elif isinstance(error, ArgumentsError):
            complain(problem, error.program)
            print(f"{error.program} --help prints its options", file=sys.stderr)
        else:
            complain(problem)
        return code


def _run(argv: list[str], args: argparse.Namespace) -> int:
    """Returns the exit code of a verb; without arguments, prints the help."""
    if not argv:
        parser().print_help()
        return EXIT_DONE
    parser(argv[0]).parse_args(argv, args)
    import numpy  # noqa: F401  every verb needs it, and may be interrupted once it is loaded

    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # see `dlio.__main__`
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # for paths that are not UTF-8
    logging.basicConfig(handlers=[log_handler()], level=_level(args))
    code: int = args.function(args)
    sys.stdout.flush()
    return code


def _explained(error: BaseException, args: argparse.Namespace) -> tuple[str, int]:
    """Returns what an error says, and the exit code; raises it again if it is a fault of dlio."""
    limit = limits.reached(error) if isinstance(error, Exception) else None
    match error:
        case DlioError():
            return error.text, error.exit_code
        case ModuleNotFoundError() if (error.name or "").partition(".")[0] != "dlio":
            package = (error.name or "").replace("PIL", "pillow")
            problem = f"the package {package!r} is missing, or lacks a part: pip install {package.partition('.')[0]}"
            return problem, MissingPackageError.exit_code
        case OSError():
            _discard_output()
            where = error.filename or ("" if limit else "cannot write the report")
            return ": ".join(filter(None, (where, error.strerror, limit))), StorageError.exit_code
        case MemoryError() | RuntimeError() if limit is not None:
            return f"{str(error) or 'not enough memory'}: {limit}", MissingError.exit_code
        case KeyboardInterrupt():
            advice = "; run the same command again to continue" if getattr(args, "resumes", False) else ""
            return f"interrupted{advice}", EXIT_INTERRUPTED
    raise error


def _verb_first(argv: list[str]) -> list[str]:
    """Returns the arguments with the options of all verbs after the verb: `dlio --json info` is `dlio info --json`."""
    leading = list(takewhile(OF_ALL_VERBS.__contains__, argv))
    return [*argv[len(leading) : len(leading) + 1], *leading, *argv[len(leading) + 1 :]]


def _level(args: argparse.Namespace) -> int:
    return logging.ERROR if args.quiet else logging.INFO if args.verbose else logging.WARNING


def _discard_output() -> None:
    """Sends the rest of the output to /dev/null, so that the final flush does not fail again."""
    with suppress(OSError, ValueError):  # it is not a file
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
