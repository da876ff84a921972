"""As `dlio_torch`, with JPEGs packed with --crop-ready."""

from __future__ import annotations

from benchmarks.loaders.ways import dlio_torch
from benchmarks.loaders.ways.dlio_crop_ready import prepare
from benchmarks.loaders.ways.dlio_torch import PACKAGES, batches

__all__ = ["NAME", "PACKAGES", "TASKS", "batches", "prepare"]

TASKS = ("jpeg", "recipe")
NAME = f"{dlio_torch.NAME}, crop-ready"
