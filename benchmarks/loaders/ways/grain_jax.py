"""Grain as in grain_threads, with each batch handed to JAX."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.loaders.tasks import Task
from benchmarks.loaders.ways import grain_threads
from benchmarks.loaders.ways.grain_threads import prepare

__all__ = ["NAME", "PACKAGES", "TASKS", "batches", "prepare"]

NAME = "Grain, JAX"
PACKAGES = grain_threads.PACKAGES | {"jax": "jax"}
TASKS = ("jpeg", "png")


def batches(data: Path, task: Task) -> Iterator[Any]:
    """Yields arrays (n, height, width, 3) of JAX."""
    import jax

    yield from map(jax.device_put, grain_threads.batches(data, task))
