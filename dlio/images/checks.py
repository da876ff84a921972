"""Checks of the arguments that several transforms have."""

from __future__ import annotations

from numbers import Real
from typing import TypeGuard

import numpy as np

from dlio.errors import UsageError

#: How values between pixels are found, and how far each way reaches, in pixels.
REACH = {"bilinear": 1.0, "bicubic": 2.0, "nearest": 1.0}


def height_width(size: int | tuple[int, int]) -> tuple[int, int]:
    """Returns a size as height and width; raises UsageError."""
    pair = size if isinstance(size, (tuple, list)) else (size, size)
    if len(pair) != 2 or not all(map(is_pixels, pair)):
        raise UsageError(f"size={size!r}: expected a whole number of pixels >= 1, or a pair (height, width)")
    return pair[0], pair[1]


def check_white(white: int | None) -> None:
    """Raises UsageError if this is not a value of white."""
    if white is not None and not is_pixels(white):
        raise UsageError(f"white={white!r}: expected a whole number >= 1, such as 65535 or 4095")


def check_interpolation(interpolation: object) -> None:
    """Raises UsageError if images cannot be resized so."""
    if interpolation not in REACH:
        raise UsageError(f"interpolation={interpolation!r}: expected {', '.join(REACH)}")


def is_pixels(value: object) -> bool:
    """Returns whether this is a whole number of at least 1."""
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool) and int(value) >= 1


def is_number(value: object) -> TypeGuard[float]:
    """Returns whether this is a number, of Python or NumPy, and not a bool."""
    return isinstance(value, Real) and not isinstance(value, bool)


def is_range(value: object, *, may_be_zero: bool = False) -> bool:
    """Returns whether this is a pair of numbers 0 < low <= high, both finite; with `may_be_zero` 0 <= low."""
    if not isinstance(value, (tuple, list)) or len(value) != 2:
        return False
    return (
        all(map(is_number, value)) and bool(0 <= value[0] <= value[1] < float("inf")) and (may_be_zero or value[0] > 0)
    )
