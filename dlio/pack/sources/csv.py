"""A CSV file with a header, one column of image paths, and columns of labels or other fields.

The path column is called path, file, image, or as PATH_COLUMNS has it; else it is the first one with an image
in the first row, else the first. The label column is called label, class, target or category; without such a column,
all other columns are labels. A file of paths alone has no labels.

    one column of whole numbers     label is int64, as for 3 and 3.0
    one column of other numbers     label is float32
    one column of text              label is int64, the index of the text in the sorted class names
    labels with `|` between them    label is float32[n], 1 for each of its names (option separator=|)
    several columns of numbers      label is float32[n], and the class names are the columns' names

White space around labels and column names is ignored; around paths it is kept. The delimiter is `,`, tab, `;` or `|`:
the one that the header has most of.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

from dlio.errors import SourceError, UsageError
from dlio.io.sizes import counted
from dlio.pack.listing.base import Column, Listing
from dlio.pack.listing.image_files import ImageFiles, image_file_listing, path_below
from dlio.pack.listing.image_tree import EXTENSIONS
from dlio.pack.listing.keys import printable
from dlio.pack.listing.labels import AUTO, LabelColumn, check_kind, field_of_column, is_number_text, stack
from dlio.pack.listing.lists import Listed, ListPath, label_columns, list_path, raw_lines, root_of

PATH_COLUMNS = (
    "path", "file", "filename", "file_name", "filepath", "file_path", "image", "image_path", "image_file", "img_path"
)  # fmt: skip
LABEL_COLUMNS = ("label", "class", "target", "category")
DELIMITERS = ",\t;|"


def csv_file(
    path: str | Path,
    root: str | Path | None = None,
    path_column: str | None = None,
    label_columns: Sequence[str] | str | None = None,
    fields: Sequence[str] | str = (),
    labels: str = AUTO,
    separator: str = "",
    delimiter: str = "",
) -> ImageFiles:
    """Returns the images that a CSV file names, by paths below `root` (default: the folder of the file).

    Args:
        path: the CSV file, or its URL; its first line names the columns.
        root: the folder that paths start from, or a URL.
        path_column: the column of paths; by default found by its name.
        label_columns: the columns of labels, as text with commas between them; by default found by their names.
        fields: other columns to keep, each as its own field: numbers, or text of up to 256 characters.
        labels: `names` takes numbers for the names of classes, `numbers` takes them for measurements, float32;
            by default whole numbers are class indices.
        separator: what stands between several labels of one sample, such as `|`; by default there is one.
        delimiter: what stands between the columns; by default found in the header.

    Raises:
        UsageError: `labels` is another word, or the delimiter is not one character.
    """
    file = list_path(path)
    root = root_of(file, root)
    if len(delimiter) > 1:
        raise UsageError(f"the delimiter is one character, found {delimiter!r}")
    check_kind(labels)
    columns = _names(label_columns or ())
    table = _Table(file, root, path_column, columns or None, _names(fields), labels, separator, delimiter)
    return ImageFiles("csv", file, root, table.listing)


def _names(columns: Sequence[str] | str) -> tuple[str, ...]:
    return tuple(columns.split(",") if isinstance(columns, str) else columns)


open_source = csv_file
IS_GENERAL = True


def recognises(path: Path) -> bool:
    """Returns whether `path` is a .csv or .tsv file."""
    return path.suffix.lower() in (".csv", ".tsv") and path.is_file()


def _path_column(header: list[str], first: list[str]) -> str:
    """Returns the column of paths, by its name, else by the first row."""
    named = [name for name in header if name.lower() in PATH_COLUMNS]
    images = [name for name, value in zip(header, first, strict=False) if value.lower().endswith(EXTENSIONS)]
    return [*named, *images, header[0]][0]


@dataclass(frozen=True, slots=True)
class _Table:
    """See `csv_file`."""

    path: ListPath
    root: str | Path = field(repr=False)  # a URL may hold a password
    path_column: str | None
    label_columns: tuple[str, ...] | None
    fields: tuple[str, ...]
    labels: str
    separator: str
    delimiter: str

    def listing(self) -> Listing:
        """Returns the images in the order of the file."""
        rows = self._rows()
        header = self._header(next(rows, (1, []))[1])
        first = next(rows, None)
        path_column = self.path_column or _path_column(header, first[1] if first else [])
        label_names = self._label_names(header, path_column)
        path_number, *numbers = (self._number(header, name) for name in (path_column, *label_names, *self.fields))
        listed = Listed[tuple[str, ...]](self.path)
        for line, row in chain([first] if first else [], rows):
            if len(row) == len(header):
                listed.add(line, row[path_number], tuple(row[number] for number in numbers))
            else:
                listed.refuse_line(line, f"{counted(len(row), 'column')}, the header has {len(header)}")
        if not listed.names and not listed.refused:
            raise self._empty()
        listed.refuse_names()
        columns = label_columns(listed, (*label_names, *self.fields))
        values, class_names = self._values(columns[: len(label_names)])
        for name, column in zip(self.fields, columns[len(label_names) :], strict=True):
            values[field_of_column(name, values)] = column.values()
        kept = listed.refuse(columns[0].refused if columns else {})
        values = {name: column[kept] for name, column in values.items()}
        return image_file_listing(self.root, listed, values.pop("label", None), class_names, values)

    def _label_names(self, header: list[str], path_column: str) -> tuple[str, ...]:
        """Returns the columns of labels; none if there are no others than that of the paths and the other fields."""
        named = tuple(name for name in header if name.lower() in LABEL_COLUMNS)[:1]
        others = tuple(name for name in header if name != path_column and name not in self.fields)
        return self.label_columns or named or others

    def _values(self, columns: list[LabelColumn]) -> tuple[dict[str, Column], tuple[str, ...]]:
        """Returns the labels, under their field's name, and the class names."""
        if not columns:
            return {}, ()
        if len(columns) > 1:
            self._check_numbers(columns)
            return {"label": stack(columns)}, tuple(column.name for column in columns)
        labels, class_names = columns[0].several(self.separator) if self.separator else columns[0].labels(self.labels)
        return {"label": labels}, class_names

    def _check_numbers(self, columns: list[LabelColumn]) -> None:
        text = [column.name for column in columns if column.texts and not any(map(is_number_text, column.texts))]
        if text and not self.label_columns:
            found = ", ".join(column.name for column in columns)
            which = f"--option label_columns={text[0]}"
            raise UsageError(f"{self.path}: which of {found} is the label? Name it: {which}, for example")

    def _number(self, header: list[str], name: str) -> int:
        if name not in header:
            raise UsageError(f"{self.path} has no column {name!r}, only {', '.join(header)}")
        return header.index(name)

    def _rows(self) -> Iterator[tuple[int, list[str]]]:
        """Yields header and rows, each with its line number; bytes that are not UTF-8 become surrogates."""
        lines = raw_lines(self.path, newline="")
        head = next(lines, "")
        reader = csv.reader(chain([head], lines), delimiter=self.delimiter or max(DELIMITERS, key=head.count))
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
