"""Runs the examples of a document as a reader would, in this process, and compares what is printed with what is shown.

    ```python     a file, if its first line is `# NAME.py`; else lines that are run, one block after the other
    ```console    commands behind `$`, each with what it prints; `...` stands for any text, alone for any lines
    ```sh         commands for a cluster or the system, which are not run; those of dlio must parse
    <!-- compiled only: WHY -->   before a block of Python: it is not run

Digits, hexadecimal numbers and the units of rates may differ between what is shown and what is printed.
"""

from __future__ import annotations

import ast
import contextlib
import io
import re
import runpy
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from unittest import mock

from dlio import cli

START = Path(__file__).parents[2] / "docs/start.md"
_FENCED = re.compile(r"^( *)(?:<!-- compiled only: (.*?) -->\n\s*)?```(\w+).*?\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """An example: its language, its text, and whether it is run."""

    kind: str
    text: str
    runs: bool


def blocks(document: Path) -> list[Block]:
    """Returns the examples of a document."""
    found = _FENCED.findall(document.read_text())
    return [
        Block(kind, re.sub(rf"^{indent}", "", text, flags=re.MULTILINE), not why) for indent, why, kind, text in found
    ]


def prepare(folder: Path) -> None:
    """Draws the photos of the page Start in a folder, and packs them."""
    drawing = next(block for block in blocks(START) if block.text.startswith("# draw.py"))
    with contextlib.chdir(folder):
        exec(drawing.text, {})
        for part, shards in {"train": 4, "val": 1}.items():
            packing = ["pack", "photos", f"packed/{part}", "--option", f"split={part}", "--num-shards", str(shards)]
            assert cli.main([*packing, "--engine", "serial", "--quiet"]) == 0


def run(examples: list[Block], folder: Path) -> None:
    """Runs examples in a folder, in their order; raises AssertionError if one does not do what it shows."""
    names: dict[str, object] = {"__name__": "__main__"}
    shell = Shell(folder)
    with contextlib.chdir(folder):
        for block in examples:
            if block.kind == "console":
                shell.run(block.text)
            elif block.kind == "python" and (name := re.match(r"# ([\w/]+\.py)\n", block.text)):
                Path(name[1]).write_text(block.text)
            elif block.kind == "python" and block.runs:
                exec(compile(block.text, "example", "exec"), names)


def commands(block: Block) -> Iterator[tuple[str, str]]:
    """Yields each command of a block, and what is shown below it."""
    if block.kind != "console":
        text = block.text.replace("\\\n", " ")
        yield from ((line, "") for line in text.splitlines())
        return
    for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
        command, _, shown = part.replace("\\\n", " ").partition("\n")
        yield command, shown


class Shell:
    """Runs commands in a folder: those of dlio and Python in this process."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._code = folder, 0

    def run(self, text: str) -> None:
        """Runs the commands of a block, and compares what they print."""
        for command, shown in commands(Block("console", text, True)):
            printed = f"{self._code}\n" if command == "echo $?" else self._printed(command)
            assert _agrees(printed, shown), f"$ {command}\nprinted:\n{printed}\nshown:\n{shown}"

    def _printed(self, command: str) -> str:
        words, caught = _words(command), io.StringIO()
        if words[0] not in ("dlio", "python") or _is_of_shell(command):
            done = subprocess.run(
                ["bash", "-c", command], cwd=self._folder, capture_output=True, text=True, check=False
            )
            self._code = done.returncode
            return done.stdout + done.stderr
        with contextlib.redirect_stdout(caught), contextlib.redirect_stderr(caught):
            self._code = cli.main(words[1:]) if words[0] == "dlio" else _python(words[1:])
        return caught.getvalue()


def _is_of_shell(command: str) -> bool:
    """Returns whether a command has more in it than words: a pipe, a redirection, a variable."""
    return "$" in command or any(map(_is_punctuation, _words(command)))


def _words(command: str) -> list[str]:
    words = shlex.shlex(command, posix=True, punctuation_chars="|;<>&()")
    words.whitespace_split = True
    return list(words)


def _is_punctuation(word: str) -> bool:
    return bool(word) and set(word) <= set("|;<>&()")


def _python(words: list[str]) -> int:
    with mock.patch.object(sys, "argv", words):
        runpy.run_path(words[0], run_name="__main__")
    return 0


def _agrees(printed: str, shown: str) -> bool:
    pattern = "".join(r"(?s:.*)" if line == "..." else _pattern(line) + "\n" for line in shown.splitlines())
    return re.fullmatch(pattern, "".join(f"{_plain(line)}\n" for line in printed.splitlines())) is not None


def _pattern(line: str) -> str:
    return ".*".join(re.escape(_plain(part)) for part in line.split("..."))


def _plain(line: str) -> str:
    """Returns a line without figures, the units of rates, and the padding that depends on them."""
    named = re.sub(r"^[\w-]+(?=: \d+ samples)", "HOST", line)
    return re.sub(r"0 \w?B/s", "0 B/s", re.sub(r"\b[\da-f]{16,}\b|\d[\d.,]*", "0", named)).rstrip()


def parsed(command: str) -> None:
    """Parses the dlio commands of a line of shell; raises AssertionError if one is wrong."""
    words = _words(command)
    for place, word in enumerate(words):
        if word == "dlio" and (own := list(takewhile(lambda word: not _is_punctuation(word), words[place + 1 :]))):
            try:
                cli.parser().parse_args([re.sub(r"\$\{?\w+\}?", "1", word) for word in own])
            except SystemExit as end:
                assert end.code == 0, f"dlio {' '.join(own)}"


def compiles(block: Block) -> None:
    """Raises SyntaxError if a block of Python is not valid Python."""
    ast.parse(block.text)
