"""A CSV file with a header: one column of image paths, one or more columns of labels.

The path column is the one called path, file, filename, image or image_path, else the first. The label column is the one
called label, class or target; without one, every other column is a label.

    one column of whole numbers     label is int64, as for 3 and 3.0
    one column of other numbers     label is float32
    one column of text              label is int64, the place of the text among the sorted class names
    several columns of numbers      label is float32[n], and the class names are the columns' names

White space around labels and the columns' names does not count; around paths it does.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from dlio.dataset.schema import Sample
from dlio.errors import SourceError, UsageError
from dlio.pack.listing.base import Listing
from dlio.pack.listing.image_files import image_file_listing, image_file_reader, path_below
from dlio.pack.listing.keys import printable
from dlio.pack.listing.labels import stack
from dlio.pack.listing.lists import Listed, raw_lines

PATH_COLUMNS = ("path", "file", "filename", "image", "image_path")
LABEL_COLUMNS = ("label", "class", "target")


def csv_file(
    path: str | Path,
    root: str | Path | None = None,
    path_column: str | None = None,
    label_columns: tuple[str, ...] | None = None,
) -> CsvFile:
    """Returns the images that a CSV file names, by paths below `root` (default: the folder of the file).

    Args:
        path: the CSV file; its first line names the columns.
        root: the folder that paths start from.
        path_column: the column of paths; by default found by its name.
        label_columns: the columns of labels; by default found by their names.
    """
    path = Path(path).absolute()
    root = Path(root).absolute() if root is not None else path.parent
    return CsvFile(path, root, path_column, label_columns)


def open_source(
    path: Path, root: Path | None = None, path_column: str | None = None, label_columns: str | None = None
) -> CsvFile:
    """Returns the source of the CSV file `path`; the columns of labels have commas between their names."""
    return csv_file(path, root, path_column, tuple(label_columns.split(",")) if label_columns else None)


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
        label_columns = self.label_columns or named or tuple(name for name in header if name != path_column)
        if not label_columns:
            raise SourceError(f"{self.path} has no column of labels, only {', '.join(header)}")
        place, *places = (self._place(header, name) for name in (path_column, *label_columns))
        listed = Listed(self.path)
        for line, row in rows:
            if len(row) == len(header):
                listed.add(line, row[place], tuple(row[number] for number in places))
            else:
                listed.refuse_line(line, f"{len(row)} columns, the header has {len(header)}")
        if not listed.names and not listed.refused:
            raise self._empty()
        listed.refuse_names()
        columns = listed.columns(label_columns)
        labels, class_names = columns[0].labels() if len(columns) == 1 else (stack(columns), label_columns)
        return image_file_listing(self.root, listed, labels[listed.refuse(columns[0].refused)], class_names)

    def _place(self, header: list[str], name: str) -> int:
        if name not in header:
            raise UsageError(f"{self.path} has no column {name!r}, only {', '.join(header)}")
        return header.index(name)

    def _rows(self) -> Iterator[tuple[int, list[str]]]:
        """Yields header and rows, each with the number of its line; what is no UTF-8 becomes surrogates."""
        reader = csv.reader(raw_lines(self.path, newline=""))
        try:
            yield from ((reader.line_num, row) for row in reader if row)
        except csv.Error as error:
            raise SourceError(f"{self.path}, line {reader.line_num}: it is no CSV file: {error}") from error

    def _empty(self) -> SourceError:
        return SourceError(f"{self.path} has no rows: expected a header and a line for each image")

    def _header(self, header: list[str]) -> list[str]:
        """Returns the columns' names, without outer spaces."""
        if not header:
            raise self._empty()
        for number, name in enumerate(header):
            if printable(name) != name:
                raise SourceError(f"{self.path}, line 1: the column's name {name!r} is no UTF-8: rename it")
            if name.strip() in map(str.strip, header[:number]):
                raise SourceError(f"{self.path}, line 1: two columns are called {name.strip()!r}: rename one of them")
            if os.path.isfile(path_below(str(self.root), name)):  # noqa: PTH113  a Path's raises on odd names
                expected = "expected the columns' names, such as path,label: add them as the first line"
                raise SourceError(f"{self.path}, line 1: {name!r} is a file: {expected}")
        return [name.strip() for name in header]

    def reader(self, listing: Listing) -> AbstractContextManager[Callable[[int], Sample]]:
        """Gives what reads one image with its label or labels."""
        return image_file_reader(self.root, listing)
