"""As `dlio_jax`, with JPEGs packed with --decode-ready."""

from __future__ import annotations

from benchmarks.loaders.ways import dlio_jax
from benchmarks.loaders.ways.dlio_decode_ready import TASKS, prepare
from benchmarks.loaders.ways.dlio_jax import PACKAGES, batches

__all__ = ["NAME", "PACKAGES", "TASKS", "batches", "prepare"]

NAME = f"{dlio_jax.NAME}, decode-ready"
