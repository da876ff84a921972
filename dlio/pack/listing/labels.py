"""Labels as lists write them, made numbers without ever becoming others on the way.

Whole numbers, which may be written 3 or 3.000, are int64 where all of a single label are; all else is float32, in which
fractions are rounded, but no number becomes infinite, and no whole one another.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dlio.errors import UsageError
from dlio.pack.listing.keys import printable

if TYPE_CHECKING:
    import numpy as np

    from dlio.pack.listing.base import Column

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
    """One label of every sample as text; what cannot be one is refused, and 0 in its place.

    Attributes:
        path: the list, for reasons.
        lines: the number of each text's line, for reasons.
        texts: n texts.
        name: the column's name, '' where columns have none.
        refused: why rows are refused, by their number; may be shared by the columns of a list.
    """

    path: Path
    lines: Sequence[int]
    texts: Sequence[str]
    name: str = ""
    refused: dict[int, str] = field(default_factory=dict)

    def numbers(self) -> Array:
        """Returns int64 of shape (n,) where all are whole numbers, else float32.

        Refused is what is no number, or none that the type holds.
        """
        import numpy as np

        self._refuse_words()
        if not all(_WHOLE.fullmatch(text) for _, text in self._rows()):
            return self.floats()
        values = np.zeros(len(self.texts), dtype="int64")
        for row, text in self._rows():
            value = _whole(text)
            if _LEAST <= value <= _MOST:
                values[row] = value
            else:
                self._refuse(row, "is beyond an int64")
        return values

    def floats(self) -> Array:
        """Returns float32 of shape (n,).

        Refused is what is no number, too large for float32, or whole and not to be told from its neighbours there.
        """
        import numpy as np

        self._refuse_words()
        values = np.zeros(len(self.texts))
        for row, text in self._rows():
            values[row] = float(text)
        with np.errstate(over="ignore"):
            floats = values.astype("float32")
        for row in np.flatnonzero(np.abs(values) > _MOST_EXACT).tolist():
            if not np.isfinite(floats[row]):
                self._refuse(row, "is beyond a float32")
            elif _WHOLE.fullmatch(self.texts[row]) and _whole(self.texts[row]) != int(floats[row]):
                self._refuse(row, f"would become {floats[row]:.0f} as a float32")
        return floats

    def classes(self) -> tuple[Array, tuple[str, ...]]:
        """Returns the place of each text among the sorted different ones, int64, and these; outer spaces do not count.

        Refused is what is empty or no UTF-8.
        """
        import numpy as np

        self._refuse_blanks()
        for row, text in self._rows():
            if printable(text) != text:
                self._refuse(row, "is no UTF-8")
        names = sorted({text.strip() for _, text in self._rows()})
        index = {name: number for number, name in enumerate(names)}
        labels = np.zeros(len(self.texts), dtype="int64")
        for row, text in self._rows():
            labels[row] = index[text.strip()]
        return labels, tuple(names)

    def labels(self) -> tuple[Array, tuple[str, ...]]:
        """Returns one label a sample, and the class names where the column holds names instead of numbers.

        Refused is what is missing, what is no number where the others are, and a number where most others are names.
        """
        self._refuse_blanks()
        num_numbers = sum(is_number(text) for _, text in self._rows())
        if 2 * num_numbers >= len(self.texts) - len(self.refused):
            return self.numbers(), ()
        for row in [row for row, text in self._rows() if num_numbers and is_number(text)]:
            self._refuse(row, "is a number, and most others are names")
        return self.classes()

    def _rows(self) -> Iterator[tuple[int, str]]:
        """Yields number and text of the rows that are not refused so far."""
        return ((row, text) for row, text in enumerate(self.texts) if row not in self.refused)

    def _refuse_words(self) -> None:
        for row, text in self._rows():
            if not is_number(text):
                self._refuse(row, "is no number")

    def _refuse_blanks(self) -> None:
        for row, text in self._rows():
            if not text.strip():
                self.refused[row] = f"{self.path}, line {self.lines[row]}: the label{self._column()} is missing"

    def _refuse(self, row: int, problem: str) -> None:
        text = self.texts[row]
        shown = repr(text if len(text) <= 60 else text[:60] + "...")
        self.refused[row] = f"{self.path}, line {self.lines[row]}: the label {shown}{self._column()} {problem}"

    def _column(self) -> str:
        return f" in column {self.name!r}" if self.name else ""


def _whole(text: str) -> int:
    return int(text.strip().partition(".")[0])


def stack(columns: Sequence[LabelColumn]) -> Array:
    """Returns the vectors of several labels, float32 of shape (n, columns); refused is what `LabelColumn.floats` is."""
    import numpy as np

    return np.stack([column.floats() for column in columns], axis=1)


def offset(labels: Column, amount: int) -> Array:
    """Returns int64 labels with `amount` added.

    Raises:
        UsageError: a sum is beyond an int64.
    """
    import numpy as np

    labels = np.asarray(labels)
    least, most = int(labels.min()) + amount, int(labels.max()) + amount
    if least < _LEAST or most > _MOST:
        raise UsageError(f"--label-offset {amount} makes labels from {least} to {most}: they do not fit an int64")
    return labels + amount
