"""The order in which one rank first uses the shards of a data set."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

import numpy as np

from dlio.loaders.sampling.order import Indices
from dlio.loaders.sampling.rank_share import Step

_STEPS = 64  # looked at together
_MOST_SHARDS = 4096  # the rest comes hours later, in any order


def first_uses(coming: Iterable[Step], offsets: Indices) -> list[int]:
    """Returns the numbers of the first shards that steps use, in the order of their first use, up to `_MOST_SHARDS`.

    Looks no further than needed: a shuffle uses nearly all shards within a few batches.

    Args:
        coming: the batches of a rank.
        offsets: the number of the first sample of each shard, then the total; int64.
    """
    wanted = min(_MOST_SHARDS, len(offsets) - 1)
    steps = iter(coming)
    found: dict[int, None] = {}
    while len(found) < wanted and (some := list(islice(steps, _STEPS))):
        shards = np.searchsorted(offsets, np.concatenate([step.indices for step in some]), side="right") - 1
        _, firsts = np.unique(shards, return_index=True)
        found.update(dict.fromkeys(shards[np.sort(firsts)].tolist()))
    return list(found)[:wanted]
