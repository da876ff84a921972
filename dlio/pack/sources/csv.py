"""A CSV file with a header: one column of image paths, one or more columns of labels.

The path column is the one called path, file, filename, image or image_path, else the first. The label column is the one
called label, class or target; without one, every other column is a label.

    one column of whole numbers     label is int64
    one column of other numbers     label is float32
    one column of text              label is int64, the place of the text among the sorted class names
    several columns of numbers      label is float32[n], and the class names are the columns' names
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dlio.errors import SourceError, StorageError, UsageError
from dlio.pack.image_files import image_file_listing, image_file_reader, is_number
from dlio.pack.listing import Listing
from dlio.sample import Sample

if TYPE_CHECKING:
    import numpy as np

PATH_COLUMNS = ("path", "file", "filename", "image", "image_path")
LABEL_COLUMNS = ("label", "class", "target")
_WHOLE = re.compile(r"\s*[+-]?[0-9]{1,20}\s*", re.ASCII)


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


def recognises(path: Path) -> bool:
    """Tells whether `path` is a file whose name ends with .csv."""
    return path.suffix.lower() == ".csv" and path.is_file()


def open_source(
    path: Path, root: Path | None, path_column: str | None = None, label_columns: str | None = None
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
        header, rows = self._rows()
        path_column = self.path_column or next((name for name in header if name.lower() in PATH_COLUMNS), header[0])
        named = tuple(name for name in header if name.lower() in LABEL_COLUMNS)[:1]
        label_columns = self.label_columns or named or tuple(name for name in header if name != path_column)
        if not label_columns:
            raise SourceError(f"{self.path} has no column of labels, only {', '.join(header)}")
        keys = [text for _, text in self._column(header, rows, path_column).cells]
        columns = [self._column(header, rows, name) for name in label_columns]
        labels, class_names = columns[0].labels() if len(columns) == 1 else _stack(columns)
        return image_file_listing(self.root, keys, labels, class_names)

    def _column(self, header: list[str], rows: list[tuple[int, list[str]]], name: str) -> _Column:
        if name not in header:
            raise UsageError(f"{self.path} has no column {name!r}, only {', '.join(header)}")
        position = header.index(name)
        return _Column(self.path, name, [(line, row[position]) for line, row in rows])

    def _rows(self) -> tuple[list[str], list[tuple[int, list[str]]]]:
        """Returns the header and the rows, each with the number of its line."""
        try:
            with self.path.open(encoding="utf-8-sig", newline="") as file:
                reader = csv.reader(file)
                header = next(reader, [])
                rows = [(reader.line_num, row) for row in reader if row]
        except OSError as error:
            raise StorageError(error.errno, f"cannot read {self.path}: {error.strerror}") from error
        except (UnicodeDecodeError, csv.Error) as error:
            raise SourceError(f"{self.path} is no CSV file in UTF-8: {error}") from error
        if not rows:
            raise SourceError(f"{self.path} has no rows: expected a header and a line for each image")
        for line, row in rows:
            if len(row) != len(header):
                raise SourceError(f"{self.path}, line {line}: {len(row)} columns, the header has {len(header)}")
        return [name.strip() for name in header], rows

    def reader(self, listing: Listing) -> AbstractContextManager[Callable[[int], Sample]]:
        """Gives what reads one image with its label or labels."""
        return image_file_reader(self.root, listing)


@dataclass(frozen=True, slots=True)
class _Column:
    """The texts of a column of labels, each with the number of its line."""

    path: Path
    name: str
    cells: list[tuple[int, str]]

    def labels(self) -> tuple[np.ndarray[Any, Any], tuple[str, ...]]:
        """Returns one label a row, and the class names where the column holds names."""
        import numpy as np

        for line, text in self.cells:
            if not text.strip():
                raise SourceError(f"{self.path}, line {line}: the label in column {self.name!r} is missing")
        if not any(is_number(text) for _, text in self.cells):
            classes = sorted({text for _, text in self.cells})
            index = {name: number for number, name in enumerate(classes)}
            return np.array([index[text] for _, text in self.cells], dtype="int64"), tuple(classes)
        if all(_WHOLE.fullmatch(text) for _, text in self.cells):
            return np.array([self._whole(*cell) for cell in self.cells], dtype="int64"), ()
        return self.numbers().astype("float32"), ()

    def _whole(self, line: int, text: str) -> int:
        if not -(2**63) <= int(text) < 2**63:
            raise SourceError(f"{self.path}, line {line}: the label {text} in column {self.name!r} is beyond an int64")
        return int(text)

    def numbers(self) -> np.ndarray[Any, Any]:
        """Returns the column as float64."""
        import numpy as np

        for line, text in self.cells:
            if not is_number(text):
                problem = f"the label {text!r} in column {self.name!r} is no number"
                raise SourceError(f"{self.path}, line {line}: {problem}")
        return np.array([float(text) for _, text in self.cells])


def _stack(columns: list[_Column]) -> tuple[np.ndarray[Any, Any], tuple[str, ...]]:
    import numpy as np

    labels = np.stack([column.numbers() for column in columns], axis=1)
    return labels.astype("float32"), tuple(column.name for column in columns)
