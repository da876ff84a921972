"""dlio with JPEGs packed with --crop-ready."""

from __future__ import annotations

from pathlib import Path

from benchmarks.loaders.ways import dlio_plain
from benchmarks.loaders.ways.dlio_plain import PACKAGES, batches

__all__ = ["NAME", "PACKAGES", "TASKS", "batches", "prepare"]

NAME = "dlio, crop-ready"
TASKS = ("jpeg",)


def prepare(images: Path, out: Path) -> None:
    """Packs, and rewrites each JPEG so that a crop can be decoded alone."""
    dlio_plain.prepare(images, out, "--crop-ready")
