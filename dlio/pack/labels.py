"""Labels as lists write them, made numbers without ever becoming others on the way.

Whole numbers, which may be written 3 or 3.000, are int64 where all of a single label are; all else is float32, in which
fractions are rounded, but no number becomes infinite, and no whole one another.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dlio.errors import SourceError, UsageError

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

_WHOLE = re.compile(r"\s*([+-]?[0-9]+)(?:\.0*)?\s*", re.ASCII)
_NUMBER = re.compile(r"\s*[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?\s*", re.ASCII)
_LEAST, _MOST = -(2**63), 2**63 - 1  # of int64
_MOST_EXACT = 2**24  # up to here float32 holds all whole numbers
_MOST_CHARACTERS = 400  # more digits than a float64 has before its point


def is_number(text: str) -> bool:
    """Tells whether a label is written as a number."""
    return len(text) <= _MOST_CHARACTERS and _NUMBER.fullmatch(text) is not None


@dataclass(frozen=True, slots=True)
class LabelColumn:
    """One label of every sample as text.

    Attributes:
        path: the list, for errors.
        lines: the number of each text's line, for errors.
        texts: n texts.
        name: the column's name, '' where columns have none.
    """

    path: Path
    lines: Sequence[int]
    texts: Sequence[str]
    name: str = ""

    def numbers(self) -> Array:
        """Returns int64 of shape (n,) where all are whole numbers, else float32.

        Raises:
            SourceError: one is no number, or none that the type holds; names the line.
        """
        import numpy as np

        matches = [_WHOLE.fullmatch(text) if len(text) <= _MOST_CHARACTERS else None for text in self.texts]
        if None in matches:
            return self.floats()
        values = [int(match[1]) for match in matches if match]
        for row, value in enumerate(values):
            if not _LEAST <= value <= _MOST:
                raise self._error(row, "is beyond an int64")
        return np.array(values, dtype="int64")

    def floats(self) -> Array:
        """Returns float32 of shape (n,).

        Raises:
            SourceError: one is no number, too large for float32, or whole and not to be told from its neighbours there.
        """
        import numpy as np

        for row, text in enumerate(self.texts):
            if not is_number(text):
                raise self._error(row, "is no number")
        values = np.array([float(text) for text in self.texts])
        with np.errstate(over="ignore"):
            floats = values.astype("float32")
        for row in np.flatnonzero(~np.isfinite(floats)).tolist():
            raise self._error(row, "is beyond a float32")
        for row in np.flatnonzero(np.abs(values) > _MOST_EXACT).tolist():
            match = _WHOLE.fullmatch(self.texts[row])
            if match and int(match[1]) != int(floats[row]):
                raise self._error(row, f"would become {floats[row]:.0f} as a float32")
        return floats

    def classes(self) -> tuple[Array, tuple[str, ...]]:
        """Returns the place of each text among the sorted different ones, int64, and these; outer spaces do not count.

        Raises:
            SourceError: one is empty; names the line.
        """
        import numpy as np

        texts = [text.strip() for text in self.texts]
        names = sorted(set(texts))
        if "" in names:
            raise self._missing(texts.index(""))
        index = {name: number for number, name in enumerate(names)}
        return np.array([index[text] for text in texts], dtype="int64"), tuple(names)

    def labels(self) -> tuple[Array, tuple[str, ...]]:
        """Returns one label a sample, and the class names where the column holds names instead of numbers.

        Raises:
            SourceError: one is missing, or the column holds numbers and one is none; names the line.
        """
        for row, text in enumerate(self.texts):
            if not text.strip():
                raise self._missing(row)
        return (self.numbers(), ()) if any(map(is_number, self.texts)) else self.classes()

    def _missing(self, row: int) -> SourceError:
        return SourceError(f"{self.path}, line {self.lines[row]}: the label{self._column()} is missing")

    def _error(self, row: int, problem: str) -> SourceError:
        text = self.texts[row]
        shown = repr(text if len(text) <= 60 else text[:60] + "...")
        return SourceError(f"{self.path}, line {self.lines[row]}: the label {shown}{self._column()} {problem}")

    def _column(self) -> str:
        return f" in column {self.name!r}" if self.name else ""


def stack(columns: Sequence[LabelColumn]) -> Array:
    """Returns the vectors of several labels, float32 of shape (n, columns).

    Raises:
        SourceError: as `LabelColumn.floats`.
    """
    import numpy as np

    return np.stack([column.floats() for column in columns], axis=1)


def offset(labels: Array, amount: int) -> Array:
    """Returns int64 labels with `amount` added.

    Raises:
        UsageError: a sum is beyond an int64.
    """
    least, most = int(labels.min()) + amount, int(labels.max()) + amount
    if least < _LEAST or most > _MOST:
        raise UsageError(f"--label-offset {amount} makes labels from {least} to {most}: they do not fit an int64")
    return labels + amount
