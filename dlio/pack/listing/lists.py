"""Listed: what a list of image files names, entry by entry, and which entries are refused."""

from __future__ import annotations

import os
import stat
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from dlio.errors import SourceError
from dlio.io.files import storage_errors
from dlio.pack.listing.keys import Keys, odd, printable
from dlio.pack.listing.labels import LabelColumn

MAX_LINE = 1 << 20  # characters; a path has up to 4096 bytes, 10,000 labels take some 100 KB
_MOST_KNOWN = 1 << 16  # labels of classes are fewer, measurements are hardly ever equal


@dataclass(slots=True)
class Listed:
    """The files that a list names.

    Attributes:
        path: the list.
        names: each file's path as written there.
        lines: the number of each one's line.
        labels: the label or labels of each, as its source keeps them, hashable; equal ones are kept once.
        refused: the entries that cannot be packed, each with the reason; no others hold them.
    """

    path: Path
    names: list[str] = field(default_factory=list)
    lines: array[int] = field(default_factory=lambda: array("q"))
    labels: list[Any] = field(default_factory=list)
    refused: list[tuple[str, str]] = field(default_factory=list)
    _known: dict[object, object] = field(default_factory=dict)

    def add(self, line: int, name: str, label: object) -> None:
        """Adds an entry."""
        self.names.append(name)
        self.lines.append(line)
        known = self._known.get(label)
        if known is None and len(self._known) < _MOST_KNOWN:
            self._known[label] = label
        self.labels.append(label if known is None else known)

    def refuse_line(self, line: int, problem: str) -> None:
        """Notes that a line is no entry."""
        self.refused.append((f"line {line}", f"{self.path}, line {line}: {problem}"))

    def refuse(self, reasons: Mapping[int, str]) -> slice | list[int]:
        """Takes out the entries numbered so, for these reasons, and returns the numbers of the others, or all."""
        if not reasons:
            return slice(None)
        kept = [row for row in range(len(self.names)) if row not in reasons]
        for row in sorted(reasons):
            self.refused.append((printable(self.names[row]) or f"line {self.lines[row]}", reasons[row]))
        self.names, self.labels = [self.names[row] for row in kept], [self.labels[row] for row in kept]
        self.lines = array("q", [self.lines[row] for row in kept])
        return kept

    def refuse_names(self) -> None:
        """Takes out entries whose names are no keys, or those of entries before."""
        odd_names = ((row, odd(name)) for row, name in enumerate(self.names))
        self.refuse({row: f"{self.path}, line {self.lines[row]}: {why}" for row, why in odd_names if why})
        if repeated := Keys.of(self.names).repeated():
            first_lines = dict(zip(reversed(self.names), reversed(self.lines), strict=True))
            self.refuse({row: self._listed_twice(row, first_lines[self.names[row]]) for row in repeated})

    def _listed_twice(self, row: int, first: int) -> str:
        problem = f"{self.names[row]!r} is listed twice, first by line {first}"
        return f"{self.path}, line {self.lines[row]}: {problem}: keys name samples, remove one of the two"

    def columns(self, names: Sequence[str]) -> list[LabelColumn]:
        """Returns the columns of labels that are lists of text, called `names`; what they refuse, they share."""
        refused: dict[int, str] = {}
        return [
            LabelColumn(self.path, self.lines, [texts[place] for texts in self.labels], name, refused)
            for place, name in enumerate(names)
        ]


def read_lines(path: Path) -> Iterator[str]:
    """Yields the lines of a list, without their ends; only a newline ends a line.

    Raises:
        SourceError: it is empty, or as `raw_lines`.
        StorageError: it cannot be read.
    """
    line = None
    for line in raw_lines(path, newline="\n"):
        yield line.removesuffix("\n").removesuffix("\r")
    if line is None:
        raise SourceError(f"{path} is empty: expected a line for each image")


def raw_lines(path: Path, newline: str) -> Iterator[str]:
    """Yields the lines of a list in UTF-8, with their ends, which are what `open` takes `newline` for.

    Bytes that are no UTF-8 become surrogates, so that the names that hold them are refused one by one.

    Raises:
        SourceError: it is no regular file, or a line is too long.
        StorageError: it cannot be read.
    """
    with (
        storage_errors("read", path),
        open(path, encoding="utf-8-sig", errors="surrogateescape", newline=newline, opener=_open_regular) as file,
    ):
        for number, line in enumerate(iter(partial(file.readline, MAX_LINE + 1), ""), start=1):
            if len(line) > MAX_LINE:
                raise SourceError(f"{path}, line {number}: more than {MAX_LINE:,} characters: it is no list of images")
            yield line


def _open_regular(path: str, flags: int) -> int:
    descriptor = os.open(path, flags | os.O_NONBLOCK)  # a pipe would wait for its writer
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise SourceError(f"{path} is no regular file: give a list that is one")
    return descriptor
