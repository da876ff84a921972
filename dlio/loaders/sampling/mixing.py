"""How well a window shuffle mixes compared with the exact shuffle: pure functions of the shards' sizes and labels.

A batch should be a random sample of the data set. A batch from a window of shards is a cluster sample: if the shards
differ (for example, packed class by class), the composition of batches varies more. The score is the variance of a
batch's composition under the exact shuffle, divided by that under the window shuffle: 1 / (Kish's design effect;
"Survey Sampling", 1965). The same variance decides in the analysis of SGD over shuffled blocks of data (Xu et al.,
"In-Database Machine Learning with CorgiPile", SIGMOD 2022). For N samples in S shards, G = ceil(S / W) windows of about
N / G samples, and batches of b:

    score = 1 / (1 + (r - 1) g)     where r > 1, else 1

    r = (V / T) (N - 1) / (S - 1)                      how many times more the shards differ than at random;
                                                       V is the variance of class shares between shards, T of samples
    g = (G - 1) N (b - 1) / ((N - G) (N - b))          how much of that reaches a batch; 1 if b is more than a window

It is the expectation over seeds and epochs. It is exact for one lane, shards of equal size, W that divides S, and
windows of whole batches (or batches of whole windows).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from dlio.loaders.sampling.order import Indices, Window


def mixing_score(window: Window, batch_size: int, sizes: Indices, label_counts: Indices | None = None) -> float:
    """Returns how well labels mix: 1 is as in an exact shuffle.

    At 0.5 a batch is mixed as well as an exactly shuffled one of half its size.

    Args:
        window: the shuffle.
        batch_size: samples of a global batch, at least 1.
        sizes: the number of samples in each of S shards; int64 of shape (S,).
        label_counts: how many samples of each shard have each label, int64 of shape (S, classes), one or several
            labels to a sample. Without it each shard counts as its own class, which gives the lowest score.
    """
    num_samples, num_shards = int(sizes.sum()), len(sizes)
    num_windows = -(-num_shards // window.num_shards)
    if num_windows == 1 or batch_size >= num_samples:
        return 1.0
    unlikeness = 1.0 if label_counts is None else _unlikeness(label_counts, sizes)
    excess = unlikeness * (num_samples - 1) / (num_shards - 1) - 1
    return 1 / (1 + max(0.0, excess) * _exposure(num_samples, num_windows, batch_size))


def _unlikeness(label_counts: Indices, sizes: Indices) -> float:
    """Returns the share of the labels' variance that lies between shards, from 0 to 1: V / T."""
    filled = sizes > 0
    weights = sizes[filled] / sizes.sum()
    shares: npt.NDArray[np.float64] = label_counts[filled] / sizes[filled, None]
    mean = weights @ shares
    total = float(mean @ (1 - mean))
    return float(weights @ np.square(shares - mean).sum(axis=1)) / total if total > 0 else 0.0


def _exposure(num_samples: int, num_windows: int, batch_size: int) -> float:
    """Returns how much of the shards' differences reaches a batch, from 0 to 1: g."""
    if batch_size * num_windows >= num_samples:
        return 1.0
    spread = (num_windows - 1) / (num_samples - num_windows)
    return spread * num_samples * (batch_size - 1) / (num_samples - batch_size)
