"""As `dlio_tensorflow`, with JPEGs packed with --decode-ready."""

from __future__ import annotations

from benchmarks.loaders.ways import dlio_tensorflow
from benchmarks.loaders.ways.dlio_decode_ready import TASKS, prepare
from benchmarks.loaders.ways.dlio_tensorflow import PACKAGES, batches

__all__ = ["NAME", "PACKAGES", "TASKS", "batches", "prepare"]

NAME = f"{dlio_tensorflow.NAME}, decode-ready"
