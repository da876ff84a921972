"""Listed: the entries of a list of image files, and the refused entries."""

from __future__ import annotations

import os
import stat
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from io import BytesIO, TextIOWrapper
from pathlib import Path
from typing import BinaryIO, Generic, TextIO, TypeVar

from dlio.errors import SourceError
from dlio.io.files import storage_errors
from dlio.io.remote_files import fetch_file
from dlio.pack.listing.base import Refused
from dlio.pack.listing.keys import Keys, key_problem, printable
from dlio.pack.listing.labels import LabelColumn
from dlio.urls import is_url, shown

MAX_LINE = 1 << 20  # characters; a path has up to 4096 bytes, 10,000 labels take about 100 KB
_MOST_BYTES = 256 << 20  # of a list at a URL: names three million images
_MOST_KNOWN = 1 << 16  # there are fewer classes, and measurements are rarely equal


Label = TypeVar("Label")


@dataclass(slots=True)
class Listed(Generic[Label]):
    """The files that a list names; `Label` is the type of their labels, which is hashable.

    Attributes:
        path: the list.
        names: the path of each file, as written in the list.
        lines: the line number of each file.
        labels: the label or labels of each file; equal ones are stored once.
        refused: the entries that cannot be packed, each with the reason; these are not in the other attributes.
    """

    path: ListPath
    names: list[str] = field(default_factory=list)
    lines: array[int] = field(default_factory=lambda: array("q"))
    labels: list[Label] = field(default_factory=list)
    refused: Refused = field(default_factory=list)
    _known: dict[Label, Label] = field(default_factory=dict)

    def add(self, line: int, name: str, label: Label) -> None:
        """Adds an entry."""
        self.names.append(name)
        self.lines.append(line)
        known = self._known
        self.labels.append(known.setdefault(label, label) if len(known) < _MOST_KNOWN else known.get(label, label))

    def refuse_line(self, line: int, problem: str) -> None:
        """Refuses a line that is not an entry."""
        self.refused.append((f"line {line}", f"{self.path}, line {line}: {problem}"))

    def refuse(self, reasons: Mapping[int, str]) -> slice | list[int]:
        """Refuses entries, given the reason for each by its number; returns which of the entries are kept."""
        if not reasons:
            return slice(None)
        kept = [row for row in range(len(self.names)) if row not in reasons]
        for row in sorted(reasons):
            self.refused.append((printable(self.names[row]) or f"line {self.lines[row]}", reasons[row]))
        self.names, self.labels = [self.names[row] for row in kept], [self.labels[row] for row in kept]
        self.lines = array("q", [self.lines[row] for row in kept])
        return kept

    def refuse_names(self) -> None:
        """Refuses entries whose names are not keys, or repeat an earlier name."""
        odd_names = ((row, key_problem(name)) for row, name in enumerate(self.names))
        self.refuse({row: f"{self.path}, line {self.lines[row]}: {why}" for row, why in odd_names if why})
        if repeated := Keys.of(self.names).repeated():
            first_lines = dict(zip(reversed(self.names), reversed(self.lines), strict=True))
            self.refuse({row: self._listed_twice(row, first_lines[self.names[row]]) for row in repeated})

    def _listed_twice(self, row: int, first: int) -> str:
        problem = f"{self.names[row]!r} is listed twice, first by line {first}"
        return f"{self.path}, line {self.lines[row]}: {problem}: keys name samples, remove one of the two"


@dataclass(frozen=True, slots=True)
class ListAtUrl:
    """The path of a list at a URL; as text it is without user and password."""

    url: str = field(repr=False)

    def __str__(self) -> str:
        return shown(self.url)

    __fspath__ = __str__

    @property
    def parent(self) -> str:
        """The URL of the list's folder."""
        return self.url.rpartition("/")[0]


ListPath = Path | ListAtUrl


def list_path(path: str | Path) -> ListPath:
    """Returns the path of a list that the user has named by its path or its URL."""
    return ListAtUrl(str(path)) if is_url(path) else Path(path).absolute()


def root_of(path: ListPath, root: str | Path | None) -> str | Path:
    """Returns what the paths in the list `path` start from: the URL or folder `root`, by default the list's folder."""
    if root is None:
        return path.parent
    return str(root) if is_url(root) else Path(root).absolute()


def label_columns(listed: Listed[tuple[str, ...]], names: Sequence[str]) -> list[LabelColumn]:
    """Returns the columns `names` of a list whose labels are text; the columns share their refused rows."""
    refused: dict[int, str] = {}
    columns = zip(*listed.labels, strict=True) if listed.labels else [()] * len(names)
    return [
        LabelColumn(listed.path, listed.lines, texts, name, refused) for name, texts in zip(names, columns, strict=True)
    ]


def read_lines(path: ListPath) -> Iterator[str]:
    """Yields the lines of a list, without the newlines; only a newline ends a line.

    Raises:
        SourceError: the list is empty, or as `raw_lines`.
        StorageError: the list cannot be read.
    """
    line = None
    for line in raw_lines(path, newline="\n"):
        yield line.removesuffix("\n").removesuffix("\r")
    if line is None:
        raise SourceError(f"{path} is empty: expected a line for each image")


def raw_lines(path: ListPath, newline: str) -> Iterator[str]:
    """Yields the lines of a list in UTF-8, with their ends; `newline` is as for `open`. One at a URL is read whole.

    Bytes that are not UTF-8 become surrogates, so that names that hold them are refused one by one.

    Raises:
        SourceError: the list is not a regular file, or a line is too long.
        StorageError: the list cannot be read.
    """
    with storage_errors("read", path), _opened(path, newline) as file:
        for number, line in enumerate(iter(partial(file.readline, MAX_LINE + 1), ""), start=1):
            if len(line) > MAX_LINE:
                raise SourceError(f"{path}, line {number}: more than {MAX_LINE:,} characters, not a list of images")
            yield line


def _opened(path: ListPath, newline: str) -> TextIO:
    if isinstance(path, Path):
        data: BinaryIO = open(path, "rb", opener=_open_regular)  # noqa: SIM115  the wrapper closes it
    else:
        data = BytesIO(fetch_file(path.url, _MOST_BYTES))
        if len(data.getbuffer()) > _MOST_BYTES:
            raise SourceError(f"{path} has more than {_MOST_BYTES:,} bytes: copy it to a folder, and give --root")
    return TextIOWrapper(data, encoding="utf-8-sig", errors="surrogateescape", newline=newline)


def _open_regular(path: str, flags: int) -> int:
    descriptor = os.open(path, flags | os.O_NONBLOCK)  # a pipe would wait for its writer
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise SourceError(f"{path} is not a regular file: give a list that is one")
    return descriptor
