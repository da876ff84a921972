"""The command `dlio`: each verb is a short function over the library function of its name."""

from __future__ import annotations

import argparse
import importlib
import io
import logging
import os
import re
import signal
import sys
from collections.abc import Iterable
from contextlib import suppress
from difflib import get_close_matches
from itertools import takewhile
from typing import Any, NoReturn

from dlio.io import limits

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # numpy's BLAS, never used here, would start threads that spin

from dlio import __version__
from dlio.cli.options import OF_ALL_VERBS
from dlio.cli.output import complain, log_handler
from dlio.errors import (
    EXIT_DONE,
    EXIT_INTERRUPTED,
    DlioError,
    MissingError,
    MissingPackageError,
    StorageError,
    UsageError,
    missing_package,
)
from dlio.executors import ReportedElsewhereError
from dlio.urls import without_credentials

#: The verbs of each module of this package.
VERBS = {
    "pack": ("pack", "convert"),
    "sets": ("split", "select", "merge"),
    "info": ("info",),
    "verify": ("verify",),
    "index": ("index",),
    "mount": ("mount",),
    "stage": ("stage", "clean"),
    "plan": ("plan",),
    "report": ("report",),
    "show": ("show",),
    "bench": ("bench",),
    "doctor": ("doctor",),
}


class _Parser(argparse.ArgumentParser):
    """Prints an error of the arguments in two lines, without passwords, and the likely option or verb."""

    _mixing = False

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Takes options between the arguments of a verb, too: `dlio stage DATASET --dry-run DEST`."""
        if self._subparsers is not None or self._mixing:
            return super().parse_known_args(args, namespace)
        words = list(sys.argv[1:] if args is None else args)
        self._mixing = True
        try:
            if "--" not in words or not any(action.dest == "command" for action in self._actions):
                return self.parse_known_intermixed_args(words, namespace)
            at = words.index("--")  # what follows is another program's, also one more `--`
            found, extra = self.parse_known_intermixed_args(words[:at], namespace)
            found.command = words[at + 1 :]
            return found, extra
        finally:
            self._mixing = False

    def error(self, message: str) -> NoReturn:
        first = without_credentials(message) + self._meant(message)
        self.exit(UsageError.exit_code, f"{self.prog}: {first}\n{self.prog} --help shows what it takes\n")

    def _meant(self, message: str) -> str:
        """Returns the option or verb that is most like a wrong one."""
        verbs = {name: verb for action in self._actions for name, verb in _choices(action).items()}
        known = [option for parser in (self, *verbs.values()) for option in parser._option_string_actions]
        wrong = (
            re.findall(r"--[\w-]+", message) if "unrecognized" in message else re.findall(r"choice: '(.*?)'", message)
        )
        names = {name.lstrip("-"): name for name in (*known, *verbs)}  # without dashes, which all options share
        found = [names[close] for word in wrong for close in _like(word.lstrip("-"), names)]
        return f": did you mean {found[0]}?" if found else ""


def _like(word: str, names: Iterable[str]) -> list[str]:
    """Returns a name that ends with the word, such as num-shards with shards, else the one most like it."""
    return [name for name in names if name.endswith(f"-{word}")][:1] or get_close_matches(word, names, 1)


def _choices(action: argparse.Action) -> dict[str, argparse.ArgumentParser]:
    return dict(action.choices or {}) if isinstance(action, argparse._SubParsersAction) else {}


class _PrintCompletion(argparse.Action):
    """Prints the script that completes verbs and options in a shell."""

    def __call__(self, top: argparse.ArgumentParser, args: object, shell: Any, option: object = None) -> None:
        try:
            import shtab
        except ImportError as error:
            raise missing_package("shtab", "completion", "shell completion") from error
        print(shtab.complete(top, shell))
        top.exit()


def parser(verb: str | None = None) -> argparse.ArgumentParser:
    """Returns the parser of the whole command line; for a known `verb` or --version, of no more than that."""
    top = _Parser(prog="dlio", description="Pack, stage and feed small-image data sets.")
    top.add_argument("--version", action="version", version=f"dlio {__version__}")
    shells = ("bash", "zsh", "tcsh")
    completion = 'print the completion script: eval "$(dlio --print-completion bash)"'
    top.add_argument("--print-completion", action=_PrintCompletion, choices=shells, help=completion)
    verbs = top.add_subparsers(metavar="VERB", required=True)
    needed = [name for name, own in VERBS.items() if verb in own]
    for name in needed or (VERBS if verb != "--version" else ()):
        importlib.import_module(f"{__name__}.{name}").add_verbs(verbs)
    return top


def main(argv: list[str] | None = None) -> int:
    """Runs the command line and returns its exit code; errors are one line on stderr."""
    words = _verb_first(sys.argv[1:] if argv is None else argv)
    args = argparse.Namespace()
    try:
        parser(words[0] if words else None).parse_args(words, args)
        import numpy  # noqa: F401  every verb needs it, and may be interrupted once it is loaded

        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # see `dlio.__main__`
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="backslashreplace")  # for paths that are not UTF-8
        logging.basicConfig(handlers=[log_handler()], level=_level(args))
        code: int = args.function(args)
        sys.stdout.flush()
    except DlioError as error:
        _complain(error, error.text)
        return error.exit_code
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "dlio":
            raise
        package = (error.name or "").replace("PIL", "pillow")
        _complain(
            error, f"the package {package!r} is missing, or lacks a part: pip install {package.partition('.')[0]}"
        )
        return MissingPackageError.exit_code
    except BrokenPipeError:
        _discard_output()
        return EXIT_DONE
    except OSError as error:
        _discard_output()
        where = error.filename or ("" if limits.reached(error) else "cannot write the report")
        _complain(error, ": ".join(filter(None, (where, error.strerror, limits.reached(error)))))
        return StorageError.exit_code
    except (MemoryError, RuntimeError) as error:
        if (limit := limits.reached(error)) is None:
            raise
        _complain(error, f"{str(error) or 'not enough memory'}: {limit}")
        return MissingError.exit_code
    except KeyboardInterrupt as error:
        advice = "; run the same command again to go on" if getattr(args, "resumes", False) else ""
        _complain(error, f"interrupted{advice}")
        return EXIT_INTERRUPTED
    return code


def _verb_first(words: list[str]) -> list[str]:
    """Returns the words with the options of all verbs behind the verb: `dlio --json info` is `dlio info --json`."""
    leading = list(takewhile(OF_ALL_VERBS.__contains__, words))
    return [*words[len(leading) : len(leading) + 1], *leading, *words[len(leading) + 1 :]]


def _level(args: argparse.Namespace) -> int:
    return logging.ERROR if args.quiet else logging.INFO if args.verbose else logging.WARNING


def _discard_output() -> None:
    """Sends the rest of the output to /dev/null, so that the final flush does not fail again."""
    with suppress(OSError, ValueError):  # it is not a file
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _complain(error: BaseException, message: str) -> None:
    """Prints an error, unless another process of the same job prints it."""
    if not isinstance(error.__cause__, ReportedElsewhereError):
        complain(message)
