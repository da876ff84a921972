"""The output of verbs: lines for people, or one JSON object with --json."""

from __future__ import annotations

import argparse
import json
import logging
import os
import re
import sys
from typing import Any, TextIO

from dlio.errors import EXIT_DONE
from dlio.io.sizes import format_size
from dlio.urls import without_credentials

BOLD, RED, GREEN, YELLOW = 1, 31, 32, 33  # codes of a terminal
_UNFIT = r"\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff"  # these break lines, or cannot be printed
_CONTROL = re.compile(f"[{_UNFIT}]")


def say(args: argparse.Namespace, line: str, mark: str = "") -> None:
    """Prints a line for people, unless --quiet or --json is given; a coloured mark stands before it."""
    if not (args.quiet or args.json):
        print(f"{mark} {_in_one_line(line)}" if mark else _in_one_line(line))


def complain(line: str, program: str = "dlio") -> None:
    """Prints an error or warning on stderr, in one line."""
    print(f"{painted(f'{program}:', BOLD, sys.stderr)} {_in_one_line(without_credentials(line))}", file=sys.stderr)


def complain_as_json(problem: str, kind: str, exit_code: int) -> None:
    """Prints an error on stderr, as one JSON object in one line."""
    report = {"error": without_credentials(problem), "kind": kind, "exit_code": exit_code}
    print(json.dumps(report), file=sys.stderr)


def painted(text: str, code: int, stream: TextIO) -> str:
    """Returns a text in bold or in a colour for a terminal, unless NO_COLOR is set (https://no-color.org)."""
    is_plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb" or not stream.isatty()
    return text if is_plain else f"\x1b[{code}m{text}\x1b[0m"


def log_handler() -> logging.Handler:
    """Returns a handler that prints log records on stderr, without the passwords of URLs in them."""
    handler = logging.StreamHandler()
    handler.setFormatter(_Formatter("dlio: %(message)s"))
    return handler


class _Formatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return _in_one_line(without_credentials(super().format(record)))


def _in_one_line(text: str) -> str:
    return _CONTROL.sub(lambda found: repr(found[0])[1:-1], text)


def unmistakable(name: str) -> str:
    """Returns a name for a list; quotes a name that contains a list separator."""
    return repr(name) if _CONTROL.search(name) or not name or set(name) & set(",:'\"") else name


def print_report(args: argparse.Namespace, report: dict[str, Any]) -> int:
    """Prints a report: one JSON object with --json, else a line for each entry; returns the exit code 0."""
    if args.json:
        print(json.dumps(report))
        return EXIT_DONE
    for name, value in report.items():
        shown = f"{value:,} ({format_size(value)})" if "bytes" in name.split("_") else value
        say(args, f"{name.replace('_', ' '):20} {_line(shown)}")
    return EXIT_DONE


def _line(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key}: {_item(item)}" for key, item in value.items() if item is not None)
    return str(value)


def _item(value: object) -> str:
    return f"({_line(value)})" if isinstance(value, dict) else str(value)
