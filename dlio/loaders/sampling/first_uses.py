"""The order in which one rank first uses the shards of a data set."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

import numpy as np

from dlio.loaders.sampling.order import Indices

_STEPS = 64  # processed together
_MOST_SHARDS = 4096  # the rest comes hours later, in any order


def first_uses(coming: Iterable[Indices], offsets: Indices) -> list[int]:
    """Returns the numbers of the first shards that batches use, in the order of their first use, up to `_MOST_SHARDS`.

    Looks no further than needed: a shuffle uses nearly all shards within a few batches.

    Args:
        coming: the stored samples of each batch of a rank; int64.
        offsets: the number of the first sample of each shard, then the total; int64.
    """
    wanted = min(_MOST_SHARDS, len(offsets) - 1)
    batches = iter(coming)
    found: dict[int, None] = {}
    while len(found) < wanted and (some := list(islice(batches, _STEPS))):
        shards = np.searchsorted(offsets, np.concatenate(some), side="right") - 1
        _, firsts = np.unique(shards, return_index=True)
        found.update(dict.fromkeys(shards[np.sort(firsts)].tolist()))
    return list(found)[:wanted]
