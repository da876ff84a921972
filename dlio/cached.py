"""Properties that are computed once. `import dlio.dataset` needs this module, so it does not import `threading`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, TypeVar

T = TypeVar("T")


class cached_property(functools.cached_property[T]):  # noqa: N801, TID251  the name that type checkers know
    """A property that is computed once, without a lock, as by `functools` from Python 3.12 on; its function is pure.

    The lock of Python 3.11 is one for all objects. In a child that was forked while a thread computes the property of
    any of them, it stays shut forever.
    """

    def __init__(self, compute: Callable[[Any], T]) -> None:
        super().__init__(compute)
        self.lock = nullcontext()
