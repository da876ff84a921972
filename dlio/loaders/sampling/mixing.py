"""How well a window shuffle mixes, beside the exact shuffle: pure functions of the shards' sizes and labels.

A batch should be a random sample of the whole. One drawn from a window of shards is a cluster sample: where shards
differ from each other (packed class by class, say), the composition of batches varies more. The score is the variance
of a batch's composition under the exact shuffle over that under the window shuffle: 1 / (Kish's design effect; "Survey
Sampling", 1965). That variance is also what the analysis of SGD over shuffled blocks of data turns on (Xu et al.,
"In-Database Machine Learning with CorgiPile", SIGMOD 2022). For N samples in S shards, G = ceil(S / W) windows of about
N / G samples, and batches of b:

    score = 1 / (1 + (r - 1) g)     where r > 1, else 1

    r = (V / T) (N - 1) / (S - 1)                      how many times more the shards differ than if filled at random:
                                                       V is the variance of class shares between shards, T of samples
    g = (G - 1) N (b - 1) / ((N - G) (N - b))          how much of that reaches a batch; 1 where b is more than a window

It is the expectation over seeds and epochs: exact for one lane, where shards are of one size, W divides S, and windows
hold whole batches or batches whole windows.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from dlio.loaders.sampling.order import Indices, Window


def mixing_score(window: Window, batch_size: int, sizes: Indices, label_counts: Indices | None = None) -> float:
    """Returns how well labels mix: 1 as in an exact shuffle, 0.5 if a batch tells as much as an exact one of half size.

    Args:
        window: the shuffle to be judged.
        batch_size: samples of a global batch, at least 1.
        sizes: the number of samples in each of S shards; int64 of shape (S,).
        label_counts: how many samples of each shard have each label, int64 of shape (S, classes), one or several
            labels to a sample. Without it shards count as all of one kind: the least that the score can be.
    """
    num_samples, num_shards = int(sizes.sum()), len(sizes)
    num_windows = -(-num_shards // window.num_shards)
    if num_windows == 1 or batch_size >= num_samples:
        return 1.0
    unlikeness = 1.0 if label_counts is None else _unlikeness(label_counts, sizes)
    excess = unlikeness * (num_samples - 1) / (num_shards - 1) - 1
    return 1 / (1 + max(0.0, excess) * _exposure(num_samples, num_windows, batch_size))


def _unlikeness(label_counts: Indices, sizes: Indices) -> float:
    """Returns which part of the labels' variance lies between shards, from 0 to 1: V / T."""
    filled = sizes > 0
    weights = sizes[filled] / sizes.sum()
    shares: npt.NDArray[np.float64] = label_counts[filled] / sizes[filled, None]
    mean = weights @ shares
    total = float(mean @ (1 - mean))
    return float(weights @ np.square(shares - mean).sum(axis=1)) / total if total > 0 else 0.0


def _exposure(num_samples: int, num_windows: int, batch_size: int) -> float:
    """Returns how much of the shards' unlikeness reaches a batch, from 0 to 1: g."""
    if batch_size * num_windows >= num_samples:
        return 1.0
    spread = (num_windows - 1) / (num_samples - num_windows)
    return spread * num_samples * (batch_size - 1) / (num_samples - batch_size)
