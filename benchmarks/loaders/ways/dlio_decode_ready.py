"""dlio with JPEGs packed with --decode-ready."""

from __future__ import annotations

from pathlib import Path

from benchmarks.loaders.ways import dlio_plain
from benchmarks.loaders.ways.dlio_plain import PACKAGES, batches

__all__ = ["NAME", "PACKAGES", "TASKS", "batches", "prepare"]

NAME = "dlio, decode-ready"
TASKS = ("jpeg",)


def prepare(images: Path, out: Path) -> None:
    """Packs, and makes a record of each JPEG that is decoded without Huffman codes."""
    dlio_plain.prepare(images, out, "--decode-ready")
