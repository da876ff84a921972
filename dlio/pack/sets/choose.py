"""Chooses the samples of a selection, and the part of a split for each sample: pure functions of small columns."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
import numpy.typing as npt

from dlio.dataset.schema import Array
from dlio.errors import UsageError
from dlio.pack.plan import shuffled

Rows = npt.NDArray[np.int64]
KEY = "key"
_COMPARED: Mapping[str, Callable[[Any, Any], Any]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
}
_CONDITION = re.compile(r"\s*(?P<name>\w+)\s*(?P<how>!=|<=|>=|=|<|>)\s*(?P<value>.*?)\s*", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition on a sample.

    Attributes:
        name: a field of one number for each sample, or `key`.
        how: one of = != < <= > >=; of keys the first two, with a pattern.
        value: a number, or a pattern such as `cat/*`.
    """

    name: str
    how: str
    value: str

    @classmethod
    def of(cls, text: str) -> Condition:
        """Returns the condition in a text such as `label>=10`; raises UsageError if it is none."""
        found = _CONDITION.fullmatch(text)
        if found is None or (found["name"] == KEY and found["how"] not in ("=", "!=")):
            raise UsageError(f"--where {text!r}: expected a field and a number, such as label>=10, or key=cat/*")
        condition = cls(found["name"], found["how"], found["value"])
        if condition.name != KEY:
            condition.number()
        return condition

    def number(self) -> int | float:
        """Returns the value as a number; raises UsageError."""
        for kind in (int, float):
            try:
                return kind(self.value)
            except ValueError:
                continue
        raise UsageError(f"--where {self.name}{self.how}{self.value}: {self.value!r} is not a number")

    def holds(self, column: Any) -> npt.NDArray[np.bool_]:
        """Returns whether the condition holds for each of n samples, by their keys or values: bool of shape (n,)."""
        if self.name != KEY:
            return np.asarray(_COMPARED[self.how](column, self.number()))
        like = np.fromiter((fnmatchcase(key, self.value) for key in column), np.bool_, len(column))
        return like if self.how == "=" else ~like


def check_fractions(fractions: Sequence[float]) -> None:
    """Raises UsageError if the sizes of parts are not numbers above 0, or exceed 1 together."""
    try:
        fits = len(fractions) > 0 and min(fractions) > 0 and sum(fractions) <= 1 + 1e-9
    except TypeError:  # no numbers
        fits = False
    if not fits:
        raise UsageError(f"the fractions {fractions!r}: expected a list of numbers above 0, at most 1 together")


def stratified(values: Array, fractions: Sequence[float], seed: int) -> Rows:
    """Returns the part of each sample, -1 for none, so that each part holds its fraction of every value, at random.

    A value of at least as many samples as there are parts has one in each part.

    Args:
        values: of n samples, such as their classes; (n, ...).
        fractions: of the parts.
        seed: of the random choice.
    """
    _, group, counts = np.unique(values, axis=0, return_inverse=True, return_counts=True)
    order = np.lexsort((np.argsort(shuffled(len(values), seed)), group.ravel()))
    parts = np.empty(len(values), np.int64)
    names = np.array([*range(len(fractions)), -1])
    parts[order] = np.repeat(np.tile(names, len(counts)), _sizes(counts, fractions).ravel())
    return parts


def _sizes(counts: Rows, fractions: Sequence[float]) -> Rows:
    """Returns how many of each value's samples go to each part, and at last to none; (values, parts + 1)."""
    stops = np.ceil(counts[:, np.newaxis] * _ends(fractions) - 0.5).astype(np.int64)
    stops = np.minimum(stops, counts[:, np.newaxis])
    sizes = np.diff(stops, axis=1, prepend=0, append=counts[:, np.newaxis])
    for part in range(len(fractions)):
        short = np.flatnonzero((sizes[:, part] == 0) & (counts >= len(fractions)))
        most = len(fractions) - sizes[short, ::-1].argmax(axis=1)  # of equal ones, what no part has is given away first
        sizes[short, most] -= 1
        sizes[short, part] = 1
    return sizes


def grouped(values: Array, fractions: Sequence[float], seed: int) -> Rows:
    """Returns the part of each sample, -1 for none; samples of equal values go to the same part; as `stratified`."""
    _, group, counts = np.unique(values, axis=0, return_inverse=True, return_counts=True)
    order = shuffled(len(counts), seed)
    middle = np.empty(len(counts))
    middle[order] = np.cumsum(counts[order]) - counts[order] / 2
    return _part(middle / counts.sum(), fractions)[group.ravel()]


def _part(shares: npt.NDArray[np.float64], fractions: Sequence[float]) -> Rows:
    """Returns which fraction of the whole contains each share of [0, 1], -1 for after the last."""
    parts = np.searchsorted(_ends(fractions), shares, side="right")
    return np.where(parts < len(fractions), parts, -1)


def _ends(fractions: Sequence[float]) -> npt.NDArray[np.float64]:
    """Returns where each part ends in the whole of 1; after it, if the last is its end."""
    ends = np.cumsum(fractions)
    ends[-1] = 2 if ends[-1] > 1 - 1e-9 else ends[-1]
    return ends
