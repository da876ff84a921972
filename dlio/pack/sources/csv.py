"""A CSV file with a header, one column of image paths, and one or more columns of labels.

The path column is called path, file, filename, image or image_path; else it is the first. The label column is called
label, class or target; without such a column, all other columns are labels.

    one column of whole numbers     label is int64, as for 3 and 3.0
    one column of other numbers     label is float32
    one column of text              label is int64, the index of the text in the sorted class names
    several columns of numbers      label is float32[n], and the class names are the columns' names

White space around labels and column names is ignored; around paths it is kept.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from dlio.dataset.schema import Sample
from dlio.errors import SourceError, UsageError
from dlio.pack.listing.base import Listing
from dlio.pack.listing.image_files import image_file_listing, image_file_reader, path_below
from dlio.pack.listing.keys import printable
from dlio.pack.listing.labels import stack
from dlio.pack.listing.lists import Listed, label_columns, raw_lines

PATH_COLUMNS = ("path", "file", "filename", "image", "image_path")
LABEL_COLUMNS = ("label", "class", "target")


def csv_file(
    path: str | Path,
    root: str | Path | None = None,
    path_column: str | None = None,
    label_columns: Sequence[str] | str | None = None,
) -> CsvFile:
    """Returns the images that a CSV file names, by paths below `root` (default: the folder of the file).

    Args:
        path: the CSV file; its first line names the columns.
        root: the folder that paths start from.
        path_column: the column of paths; by default found by its name.
        label_columns: the columns of labels, as text with commas between them; by default found by their names.
    """
    path = Path(path).absolute()
    root = Path(root).absolute() if root is not None else path.parent
    columns = label_columns.split(",") if isinstance(label_columns, str) else label_columns
    return CsvFile(path, root, path_column, tuple(columns) if columns else None)


open_source = csv_file
IS_GENERAL = True


def recognises(path: Path) -> bool:
    """Returns whether `path` is a .csv file."""
    return path.suffix.lower() == ".csv" and path.is_file()


@dataclass(frozen=True, slots=True)
class CsvFile:
    """See `csv_file`."""

    path: Path
    root: Path
    path_column: str | None = None
    label_columns: tuple[str, ...] | None = None
    name: str = "csv"

    def listing(self) -> Listing:
        """Returns the images in the order of the file."""
        rows = self._rows()
        header = self._header(next(rows, (1, []))[1])
        path_column = self.path_column or next((name for name in header if name.lower() in PATH_COLUMNS), header[0])
        named = tuple(name for name in header if name.lower() in LABEL_COLUMNS)[:1]
        label_names = self.label_columns or named or tuple(name for name in header if name != path_column)
        if not label_names:
            raise SourceError(f"{self.path} has no column of labels, only {', '.join(header)}")
        path_number, *label_numbers = (self._number(header, name) for name in (path_column, *label_names))
        listed = Listed[tuple[str, ...]](self.path)
        for line, row in rows:
            if len(row) == len(header):
                listed.add(line, row[path_number], tuple(row[number] for number in label_numbers))
            else:
                listed.refuse_line(line, f"{len(row)} columns, the header has {len(header)}")
        if not listed.names and not listed.refused:
            raise self._empty()
        listed.refuse_names()
        columns = label_columns(listed, label_names)
        labels, class_names = columns[0].labels() if len(columns) == 1 else (stack(columns), label_names)
        return image_file_listing(self.root, listed, labels[listed.refuse(columns[0].refused)], class_names)

    def _number(self, header: list[str], name: str) -> int:
        if name not in header:
            raise UsageError(f"{self.path} has no column {name!r}, only {', '.join(header)}")
        return header.index(name)

    def _rows(self) -> Iterator[tuple[int, list[str]]]:
        """Yields header and rows, each with its line number; bytes that are not UTF-8 become surrogates."""
        reader = csv.reader(raw_lines(self.path, newline=""))
        try:
            yield from ((reader.line_num, row) for row in reader if row)
        except csv.Error as error:
            raise SourceError(f"{self.path}, line {reader.line_num}: it is not a CSV file: {error}") from error

    def _empty(self) -> SourceError:
        return SourceError(f"{self.path} has no rows: expected a header and a line for each image")

    def _header(self, header: list[str]) -> list[str]:
        """Returns the columns' names, without outer spaces."""
        if not header:
            raise self._empty()
        for number, name in enumerate(header):
            if printable(name) != name:
                raise SourceError(f"{self.path}, line 1: the column's name {name!r} is not UTF-8: rename it")
            if name.strip() in map(str.strip, header[:number]):
                raise SourceError(f"{self.path}, line 1: two columns are called {name.strip()!r}: rename one of them")
            if os.path.isfile(path_below(str(self.root), name)):  # noqa: PTH113  a Path's raises on odd names
                expected = "expected the columns' names, such as path,label: add them as the first line"
                raise SourceError(f"{self.path}, line 1: {name!r} is a file: {expected}")
        return [name.strip() for name in header]

    def reader(self, listing: Listing) -> AbstractContextManager[Callable[[int], Sample]]:
        """Gives a function that reads one image with its label or labels."""
        return image_file_reader(self.root, listing)
