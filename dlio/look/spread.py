"""Some of many, spread evenly."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


def spread(count: int, most: int) -> npt.NDArray[np.int64]:
    """Returns at most `most` numbers below `count`, ascending, spread evenly."""
    return np.unique(np.linspace(0, count - 1, min(count, most)).astype(np.int64))
