"""As `dlio_keras`, with JPEGs packed with --crop-ready."""

from __future__ import annotations

from benchmarks.loaders.ways import dlio_keras
from benchmarks.loaders.ways.dlio_crop_ready import TASKS, prepare
from benchmarks.loaders.ways.dlio_keras import PACKAGES, batches

__all__ = ["NAME", "PACKAGES", "TASKS", "batches", "prepare"]

NAME = f"{dlio_keras.NAME}, crop-ready"
