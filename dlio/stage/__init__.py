"""Brings a packed data set to where it is read fast; the public function is `stage`."""

from __future__ import annotations


def stage() -> None:
    """Set below by the real signature."""
