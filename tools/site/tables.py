"""Markdown of tables and names, for the pages that are made from the code."""

from __future__ import annotations

from collections.abc import Iterable


def table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """Returns a table; the cells are Markdown."""
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join(f"| {' | '.join(row)} |" for row in lines)


def names_in_code(names: Iterable[str]) -> str:
    """Returns names as code, with commas between them."""
    return ", ".join(f"`{name}`" for name in names)


def escaped(text: str) -> str:
    """Returns plain text as Markdown, in one line."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")
