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
from typing import NoReturn

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # numpy's BLAS, never used here, would start threads that spin

from dlio import __version__
from dlio.cli.output import complain, log_handler
from dlio.errors import EXIT_DONE, EXIT_INTERRUPTED, DlioError, MissingPackageError, StorageError
from dlio.executors import ReportedElsewhereError
from dlio.urls import without_credentials

#: The verbs of each module of this package.
VERBS = {
    "pack": ("pack", "convert"),
    "info": ("info",),
    "verify": ("verify",),
    "index": ("index",),
    "stage": ("stage", "plan", "clean"),
}


class _Parser(argparse.ArgumentParser):
    """Prints no password in messages about wrong arguments."""

    def error(self, message: str) -> NoReturn:
        super().error(without_credentials(message))


def parser(verb: str | None = None) -> argparse.ArgumentParser:
    """Returns the parser of the whole command line; for a known `verb` or --version, of no more than that."""
    top = _Parser(prog="dlio", description="Pack, stage and feed small-image data sets.")
    top.add_argument("--version", action="version", version=f"dlio {__version__}")
    verbs = top.add_subparsers(metavar="VERB", required=True)
    needed = [name for name, own in VERBS.items() if verb in own]
    for name in needed or (VERBS if verb != "--version" else ()):
        importlib.import_module(f"{__name__}.{name}").add_verbs(verbs)
    return top


def main(argv: list[str] | None = None) -> int:
    """Runs the command line and returns its exit code; errors are one line on stderr."""
    words = sys.argv[1:] if argv is None else argv
    args = argparse.Namespace()
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # see `dlio.__main__`
        parser(words[0] if words else None).parse_args(words, args)
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="backslashreplace")  # for paths that are not UTF-8
        logging.basicConfig(handlers=[log_handler()], level=logging.ERROR if args.quiet else logging.WARNING)
        code: int = args.function(args)
        sys.stdout.flush()
    except DlioError as error:
        _complain(error, error.text)
        return error.exit_code
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "dlio":
            raise
        _complain(error, f"the package {error.name!r} is missing, or lacks a part: pip install it")
        return MissingPackageError.exit_code
    except BrokenPipeError:
        _discard_output()
        return EXIT_DONE
    except OSError as error:
        _discard_output()
        _complain(error, f"{error.filename or 'cannot write the report'}: {error.strerror}")
        return StorageError.exit_code
    except KeyboardInterrupt as error:
        advice = "; run the same command again to go on" if getattr(args, "resumes", False) else ""
        _complain(error, f"interrupted{advice}")
        return EXIT_INTERRUPTED
    return code


def _discard_output() -> None:
    """Sends the rest of the output to /dev/null, so that the final flush does not fail again."""
    with suppress(OSError, ValueError):  # it is not a file
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _complain(error: BaseException, message: str) -> None:
    """Prints an error, unless another process of the same job prints it."""
    if not isinstance(error.__cause__, ReportedElsewhereError):
        complain(message)
