"""What an act raises."""

from __future__ import annotations


class Violation(Exception):  # noqa: N818  not an error of this tool
    """An invariant is broken; says what was expected and what was found."""
