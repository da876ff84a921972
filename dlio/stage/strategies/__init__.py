"""Ways to bring a data set to where it is read; each is a module of this folder, found by its name.

A strategy has one function, `carry_out(job: Job) -> Outcome`. Every process of a job calls it. It copies, or waits for
the process that does, and returns when this node has what the strategy gives it.
"""

from __future__ import annotations

import pkgutil


def names() -> list[str]:
    """Returns the names of all strategies, sorted."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__))
