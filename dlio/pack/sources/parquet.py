"""Parquet files of any kind, as Hugging Face's hub has them: compressed or not, in row groups of any size.

A file is read in batches of about 4 MiB, so that a worker holds these and a page of each column, whatever the size of a
row group. Columns become fields as `dlio.formats.payloads.arrow` says: encoded images, labels with class names,
numbers, text, lists. A folder may be a repository of the hub: its files lie in `data`, and their names begin with the
split, as in `train-00000-of-00002.parquet`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from fnmatch import fnmatchcase
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from dlio.errors import SourceError, UsageError
from dlio.formats.layouts.parquet import ParquetFile, leaf
from dlio.formats.payloads.arrow import ArrowColumn
from dlio.io.files import storage_errors
from dlio.io.random_access import RandomAccessFile
from dlio.pack.listing.arrow_rows import ArrowFiles, Columns
from dlio.pack.listing.classes import SPLITS
from dlio.pack.listing.file_sets import check_one_set, natural_order

if TYPE_CHECKING:
    import pyarrow

SUFFIX = ".parquet"
_LOOKS = 1000  # at names of a folder
_DATA = "data"  # the folder of the files in a repository
_SPLIT = re.compile(r"([A-Za-z_]+)(?:-[0-9].*)?\.parquet")


def parquet(path: str | Path, match: str = "", columns: str = "", split: str = "") -> ArrowFiles:
    """Returns the rows of a Parquet file, or of all Parquet files in a folder or in its folder `data`.

    Args:
        path: the file or the folder.
        match: a pattern of the names to take, such as `train-*`; by default all, which must then be one set.
        columns: the fields to take, with commas between them; by default all.
        split: the split to take, if files are named after several, such as `train`.
    """
    path = Path(path).absolute()
    files = partial(_files, path, match, split)
    return ArrowFiles("parquet", path, files, _Rows, tuple(filter(None, columns.split(","))))


open_source = parquet


def recognises(path: Path) -> bool:
    """Returns whether `path` is a Parquet file, or a folder that has one among its first entries."""
    if path.is_dir():
        return any(each.suffix == SUFFIX for folder in _folders(path) for each in islice(folder.iterdir(), _LOOKS))
    return path.suffix == SUFFIX and path.is_file()


def _folders(path: Path) -> list[Path]:
    return [folder for folder in (path, path / _DATA) if folder.is_dir()]


def _files(path: Path, match: str, split: str) -> list[Path]:
    if not path.is_dir():
        return [path]
    with storage_errors("list", path):
        path.stat()
        listed = [[file for file in folder.iterdir() if file.suffix == SUFFIX] for folder in _folders(path)]
    found = sorted(next(filter(None, listed), []), key=natural_order)
    taken = _of_split(path, [file for file in found if not match or fnmatchcase(file.name, match)], match, split)
    if not taken:
        matching = f" that match {match!r}" if match else ""
        raise SourceError(f"{path} holds no Parquet files{matching}: give the folder of the files")
    if not match:
        check_one_set(path, [file.name for file in taken], "--option match=")
    return taken


def _of_split(path: Path, found: list[Path], match: str, split: str) -> list[Path]:
    """Returns the files of the split; raises UsageError if it must be given, or is not there."""
    splits = dict.fromkeys(named[1] for file in found if (named := _SPLIT.fullmatch(file.name)))
    if split and split not in splits:
        raise UsageError(f"{path} has no split {split!r}, only {', '.join(splits) or 'files without one'}")
    if not split and not match and len(splits) > 1 and set(splits) & SPLITS:
        raise UsageError(f"{path} holds the splits {', '.join(splits)}: give one with --option split=")
    return [file for file in found if not split or file.name.startswith((f"{split}-", f"{split}."))]


class _Rows:
    """The rows of a file, group by group; a `Table`."""

    def __init__(self, path: Path) -> None:
        self._file = ParquetFile(RandomAccessFile(path))
        self.schema = self._file.schema

    def groups(self) -> Iterator[tuple[int, int, int]]:
        for number, group in enumerate(self._file.groups):
            if group.num_rows and self._file.num_rows > self._file.file.num_bytes:
                # each row will take memory: the pages must have as many
                self._file.check_growth(max(group.chunks, key=lambda chunk: chunk.num_values).column, number)
            yield number, group.num_rows, group.num_bytes

    def names(self, image: ArrowColumn) -> Iterator[pyarrow.Array]:
        path = ".".join((*image.path, "path"))
        for number in range(len(self._file.groups)):
            yield from (image.names(batch) for batch in self._file.batches(number, [path]))

    def batches(self, group: int, taken: Columns) -> Iterator[pyarrow.RecordBatch]:
        return self._file.batches(group, list(map(leaf, taken.values())))

    def close(self) -> None:
        self._file.close()
