"""Labels in lists, as text, and the numbers that they stand for.

A column of whole numbers, written 3 or 3.000, becomes int64. Other numbers become float32. Fractions are rounded, but
no number becomes infinite, and no whole number becomes another one.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from os import PathLike

import numpy as np
from numpy.typing import NDArray

from dlio.errors import SourceError, UsageError
from dlio.pack.listing.base import Column, Numbers
from dlio.pack.listing.keys import printable

_WHOLE = re.compile(r"\s*([+-]?[0-9]+)(?:\.0*)?\s*", re.ASCII)
_NUMBER = re.compile(r"\s*[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?\s*", re.ASCII)
_LEAST, _MOST = -(2**63), 2**63 - 1  # of int64
_MOST_EXACT = 2**24  # float32 represents all whole numbers up to this one
_MOST_CELLS = 1 << 28  # of a table of labels, a gigabyte
_MOST_CHARACTERS = 400  # no float64 has more digits before its point


AUTO, NAMES, NUMBERS = "auto", "names", "numbers"  # what labels are: see `LabelColumn.labels`
SEPARATORS = "|;"  # one of these in a label may separate several
_OF_NUMBERS = " ,"  # so may these, if all between them are numbers
_MOST_TEXT = 256  # characters of a text in a column: numpy gives each row the room of the longest


def check_kind(labels: str) -> None:
    """Raises UsageError if `labels` is not AUTO, NAMES or NUMBERS."""
    if labels not in (AUTO, NAMES, NUMBERS):
        raise UsageError(f"labels={labels!r}: expected {AUTO}, {NAMES} or {NUMBERS}")


def field_of_column(column: str, taken: Collection[str]) -> str:
    """Returns a column's field, with _ for what a name cannot have; raises UsageError if another has this name."""
    name = re.sub(r"\W|^(?=\d)", "_", column.strip(), flags=re.ASCII)
    if name in taken or name in ("image", "label"):
        raise UsageError(f"the column {column!r} would be a second field {name!r}: rename it")
    return name


def is_number_text(text: str) -> bool:
    """Returns whether a label is written as a number."""
    return len(text) <= _MOST_CHARACTERS and _NUMBER.fullmatch(text) is not None


@dataclass(frozen=True, slots=True)
class LabelColumn:
    """One label of every sample, as text. An invalid label is refused, and becomes 0.

    Attributes:
        path: the list, for reasons.
        lines: the number of each text's line, for reasons.
        texts: n texts.
        name: the column's name; '' if columns have no names.
        refused: the reason for each refused row, by its number; the columns of a list may share it.
    """

    path: PathLike[str]
    lines: Sequence[int]
    texts: Sequence[str]
    name: str = ""
    refused: dict[int, str] = field(default_factory=dict)

    def numbers(self) -> Column:
        """Returns int64 of shape (n,) if all labels are whole numbers, else float32.

        Refuses labels that are not numbers, and numbers beyond the type.
        """
        self._refuse_names()
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

    def floats(self) -> NDArray[np.float32]:
        """Returns float32 of shape (n,).

        Refuses labels that are not numbers, numbers beyond float32, and whole numbers that float32 does not represent.
        """
        self._refuse_names()
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

    def classes(self) -> tuple[Numbers, tuple[str, ...]]:
        """Returns the class index of each text, int64, and the sorted class names, both without outer spaces.

        Refuses labels that are empty or not UTF-8.
        """
        self._refuse_blanks()
        for row, text in self._rows():
            if printable(text) != text:
                self._refuse(row, "is not UTF-8")
        names = sorted({text.strip() for _, text in self._rows()})
        index = {name: number for number, name in enumerate(names)}
        labels = np.zeros(len(self.texts), dtype="int64")
        for row, text in self._rows():
            labels[row] = index[text.strip()]
        return labels, tuple(names)

    def several(self, separator: str) -> tuple[NDArray[np.float32], tuple[str, ...]]:
        """Returns for each sample 1 for each of its labels, else 0: float32 of shape (n, classes); and the class names.

        The names are sorted, by their numbers if all are whole. An empty text has no labels.
        """
        parts = [{part.strip() for part in text.split(separator)} - {""} for text in self.texts]
        found = set().union(*(parts[row] for row, _ in self._rows()))
        whole = all(_WHOLE.fullmatch(name) for name in found)
        names = tuple(sorted(found, key=(lambda name: (_whole(name), name)) if whole else None))
        if len(self.texts) * len(names) > _MOST_CELLS:
            raise SourceError(f"{self.path}: {len(names):,} different labels: is {separator!r} the separator?")
        number = {name: column for column, name in enumerate(names)}
        values = np.zeros((len(self.texts), len(names)), dtype="float32")
        for row, _ in self._rows():
            values[row, [number[name] for name in parts[row]]] = 1
        return values, names

    def values(self) -> Column:
        """Returns the values of a column that is not a label: numbers if all are, else text."""
        if all(is_number_text(text) for _, text in self._rows()):
            return self.numbers()
        for row, text in self._rows():
            if len(text) > _MOST_TEXT:
                self._refuse(row, f"has more than {_MOST_TEXT} characters")
            elif printable(text) != text:
                self._refuse(row, "is not UTF-8")
        return np.array([text[:_MOST_TEXT] for text in self.texts] or [""])[: len(self.texts)]

    def labels(self, kind: str = AUTO) -> tuple[Column, tuple[str, ...]]:
        """Returns one label for each sample, and the class names if the column holds names instead of numbers.

        Refuses missing labels, names in a column of numbers, and numbers in a column of names.

        Args:
            kind: NAMES takes numbers for names; NUMBERS takes whole numbers for float32, which are not class indices.

        Raises:
            UsageError: a label may be several.
        """
        self._refuse_blanks()
        if kind == NUMBERS:
            return self.floats(), ()
        if kind == NAMES:
            return self.classes()
        self._check_single()
        num_numbers = sum(is_number_text(text) for _, text in self._rows())
        if 2 * num_numbers >= len(self.texts) - len(self.refused):
            return self.numbers(), ()
        for row in [row for row, text in self._rows() if num_numbers and is_number_text(text)]:
            self._refuse(row, "is a number, and most others are names")
        return self.classes()

    def _check_single(self) -> None:
        for mark in SEPARATORS + _OF_NUMBERS:
            row = next((row for row, text in self._rows() if _may_be_several(text, mark)), None)
            if row is not None:
                where = f"{self.path}, line {self.lines[row]}: the label {self.texts[row]!r}"
                asked = f"--option 'separator={mark}' if these are several labels, --option labels={NAMES} if it is one"
                raise UsageError(f"{where} has a {mark!r}: give {asked}")

    def _rows(self) -> Iterator[tuple[int, str]]:
        """Yields number and text of the rows that are not refused yet."""
        return ((row, text) for row, text in enumerate(self.texts) if row not in self.refused)

    def _refuse_names(self) -> None:
        for row, text in self._rows():
            if not is_number_text(text):
                self._refuse(row, "is not a number")

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


def _may_be_several(text: str, mark: str) -> bool:
    return mark in text.strip(mark) and (mark in SEPARATORS or all(map(is_number_text, text.split(mark))))


def _whole(text: str) -> int:
    return int(text.strip().partition(".")[0])


def stack(columns: Sequence[LabelColumn]) -> NDArray[np.float32]:
    """Returns vectors of several labels, float32 of shape (n, columns); refuses labels as `LabelColumn.floats` does."""
    return np.stack([column.floats() for column in columns], axis=1)


def add_offset(labels: Numbers, amount: int) -> Numbers:
    """Returns labels with `amount` added; raises UsageError if a sum is beyond int64."""
    least, most = int(labels.min()) + amount, int(labels.max()) + amount
    if least < _LEAST or most > _MOST:
        raise UsageError(f"--label-offset {amount} makes labels from {least} to {most}: they do not fit an int64")
    return labels + amount
