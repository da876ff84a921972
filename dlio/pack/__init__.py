"""Packs a source of samples into shards; the public function is `pack`."""

from __future__ import annotations


def pack() -> None:
    """Set below by the real signature."""
