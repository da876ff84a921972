"""Fair shares (max-min) of a source that nodes reach through switches; pure."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def shared(wanted: Array, source: float, switch_nodes: int = 0, uplink: float = 0.0) -> Array:
    """Returns float64[num_nodes], the rate that each node gets: no node gets more unless one with less gets less.

    Args:
        wanted: float64[num_nodes], the most that each node takes.
        source: what all get together.
        switch_nodes: successive nodes below one switch; 0 for no such limit.
        uplink: what the nodes below one switch get together.
    """
    switch_nodes = min(switch_nodes, len(wanted))
    if switch_nodes:
        padded = np.zeros(-(-len(wanted) // switch_nodes) * switch_nodes)
        padded[: len(wanted)] = wanted
        groups = padded.reshape(-1, switch_nodes)
        wanted = np.minimum(groups, _levels(groups, uplink)[:, None]).ravel()[: len(wanted)]
    got: Array = np.minimum(wanted, _levels(wanted[None], source)[0])
    return got


def _levels(wanted: Array, capacity: float) -> Array:
    """Returns float64[num_groups]: cut off there, the rates of each row of float64[num_groups, n] fit the capacity."""
    ordered = np.sort(wanted, axis=1)
    below = np.cumsum(ordered, axis=1) - ordered
    count = np.arange(ordered.shape[1], 0, -1)  # nodes from this one on
    fits = below + ordered * count <= capacity  # all from this one on get as much as this one wants
    first = np.where(fits.all(axis=1), -1, np.argmin(fits, axis=1))
    rows = np.arange(len(ordered))
    levels: Array = np.where(first < 0, np.inf, (capacity - below[rows, first]) / count[first])
    return levels
