"""Runs commands in a terminal, and draws what it shows: SVG with the reader's colours."""

from __future__ import annotations

import fcntl
import io
import os
import pty
import re
import struct
import subprocess
import termios
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

COLUMNS = 104
_INK, _PAPER = (1, 2, 3), (4, 5, 6)  # stand for the reader's colours, which rich cannot name
_THEME = TerminalTheme(_PAPER, _INK, [(0x80, 0x80, 0x80)] * 8)  # dlio prints text without the sixteen colours
_SVG = """\
<svg xmlns="http://www.w3.org/2000/svg" class="rich-terminal" viewBox="0 0 {width} {height}" role="img">
<style>
svg {{ --ink: #1d2733; --paper: #f6f7f9; --edge: #c9d0d8 }}
@media (prefers-color-scheme: dark) {{ svg {{ --ink: #e2e6ec; --paper: #14161b; --edge: #3b424d }} }}
text {{ font: {char_height}px "DejaVu Sans Mono", Menlo, Consolas, monospace; white-space: pre }}
.{unique_id}-title {{ font-family: "DejaVu Sans", Verdana, sans-serif; font-size: 16px }}
{styles}
</style>
<defs><clipPath id="{unique_id}-clip-terminal"><rect width="{terminal_width}" height="{terminal_height}"/></clipPath>
{lines}</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g></g></svg>
"""
#: The queries for a terminal's graphics; the answer is that it has none.
_QUESTIONS = re.compile(rb"\x1b_.*?\x1b\\|\x1b\[[?>=]?[\d;]*[cnt]", re.DOTALL)


def output(
    command: Sequence[object],
    *,
    folder: Path,
    columns: int = COLUMNS,
    until: Callable[[str], bool] | None = None,
    variables: Mapping[str, str] | None = None,
) -> str:
    """Returns what a terminal has got from a command, after a line with a prompt and the command.

    Args:
        command: the program and its arguments.
        folder: where it runs.
        columns: the width of the terminal.
        until: whether this is the moment to draw, given the text so far; by default the end. The command runs on.
        variables: of the environment, in addition.

    Raises:
        subprocess.CalledProcessError: the command failed.
        RuntimeError: it ended before the moment came.
    """
    words = [str(word) for word in command]
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    environment = os.environ | {"TERM": "xterm-256color", "COLORTERM": "truecolor"} | dict(variables or {})
    with open(ours, "rb", buffering=0) as screen:  # noqa: PTH123
        started = subprocess.Popen(words, cwd=folder, env=environment, stdin=theirs, stdout=theirs, stderr=theirs)
        os.close(theirs)
        printed, shown = b"", None
        while piece := _read(screen):
            printed += piece
            if shown is None and until and until(_text(printed)):
                shown = _text(printed)
    if started.wait():
        raise subprocess.CalledProcessError(started.returncode, words, printed)
    if until and shown is None:
        raise RuntimeError(f"{' '.join(words)} ended too early: {_text(printed)}")
    return f"$ {' '.join(words)}\n{_text(printed) if shown is None else shown}"


def _read(screen: io.RawIOBase) -> bytes:
    try:
        return screen.read(1 << 16) or b""
    except OSError:  # the last process of the terminal has ended
        return b""


def _text(printed: bytes) -> str:
    return _QUESTIONS.sub(b"", printed).decode(errors="replace").replace("\r\n", "\n")


def drawn(title: str, text: str, *, columns: int = COLUMNS) -> str:
    """Returns the SVG of a terminal that shows this text, with its colours."""
    console = Console(record=True, file=io.StringIO(), width=columns, force_terminal=True, color_system="truecolor")
    console.print(Text.from_ansi(text.rstrip("\n")), overflow="fold", end="")
    svg = console.export_svg(title=title, theme=_THEME, code_format=_SVG, unique_id="t")
    svg = re.sub(r"<text[^>]*>\s*</text>", "", svg)  # the ends of lines
    svg = svg.replace("rgba(255,255,255,0.35)", "var(--edge)").replace("#c5c8c6", "var(--ink)")
    return svg.replace("#010203", "var(--ink)").replace("#040506", "var(--paper)")
