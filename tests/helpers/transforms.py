"""Transforms of every kind, and the samples' keys by which they draw."""

from __future__ import annotations

import numpy as np

from dlio.images import CenterCrop, RandomResizedCrop, Resize, Transform
from dlio.random_keys import derive_each

TRANSFORMS: list[Transform] = [
    RandomResizedCrop(24, flip=True),
    RandomResizedCrop((16, 32), scale=(0.9, 1.0), ratio=(5.0, 6.0)),
    CenterCrop(24),
    CenterCrop(24, resize=24),
    Resize((20, 30)),
]


def keys(count: int, seed: int = 0) -> np.ndarray:
    """Returns the keys of samples 0 to `count`, uint64 of shape (count,)."""
    return derive_each(seed, np.arange(count))
