"""An LMDB of another tool, whose values are encoded images: torchvision's LSUN, and what many scripts write.

The label is the first folder of the key, as in `dog/0001.jpg`, if all keys have one, or comes from a list. (Databases
of Caffe's Datums or of Examples need no packing: `dlio index --format lmdb`.)
"""

from __future__ import annotations

import re
from contextlib import closing
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

import numpy as np

from dlio.dataset.schema import Field, Fields, Sample, Schema
from dlio.errors import CorruptRecordError, SourceError
from dlio.formats.layouts.lmdb import MAGIC, PAGE, Entries, read_entries
from dlio.formats.lmdb import DATA_FILE
from dlio.io.random_access import RandomAccessFile
from dlio.pack.inspect.image_header import HEAD_BYTES, check_large, inspect_image
from dlio.pack.listing.base import Column, Listing, Numbers, read_ahead
from dlio.pack.listing.classes import check_no_splits, of_first_folders
from dlio.pack.listing.file_sets import begins_with
from dlio.pack.listing.image_files import file_state
from dlio.pack.listing.keys import Keys
from dlio.pack.listing.labels import AUTO, LabelColumn
from dlio.pack.listing.lists import Listed, read_lines
from dlio.pack.prefetch import Prefetcher

NONE = "none"
_BETWEEN = ",\t "  # a key and its label in a line
_TRIED = 3  # values, before the database is taken for one without images


def lmdb_images(path: str | Path, match: str = "*", labels: str = AUTO) -> LmdbImages:
    """Returns the images in the database `path`: a folder with `data.mdb`, or a file.

    Args:
        path: the database.
        match: a pattern of the keys to take, such as `image-*`.
        labels: `auto` takes the first folder of the keys, if all have one; `none` no labels; else the path of a list
            with a key and its label in each line, separated by a comma, a tab or spaces.
    """
    path = Path(path).absolute()
    return LmdbImages(path / DATA_FILE if path.is_dir() else path, match, labels)


open_source = lmdb_images


def recognises(path: Path) -> bool:
    """Returns whether `path` is a folder with a database in it, or a database."""
    begin = begins_with(path / DATA_FILE if path.is_dir() else path, PAGE.size + 4)
    return begin[PAGE.size :] == MAGIC.to_bytes(4, "little")


@dataclass(frozen=True, slots=True)
class LmdbImages:
    """See `lmdb_images`."""

    path: Path
    match: str = "*"
    labels: str = AUTO
    name: str = "lmdb"

    def listing(self) -> Listing:
        """Returns the images in the order of the keys."""
        with closing(RandomAccessFile(self.path)) as file:
            entries = _entries(file)
            texts = [key.decode(errors="backslashreplace").replace("\0", "\\x00") for key in entries.keys]
            rows = [row for row, text in enumerate(texts) if fnmatchcase(text, self.match)]
            if not rows:
                raise SourceError(f"{self.path} has no key that matches {self.match!r}: it has {len(texts)} keys")
            self._check_images(file, entries, rows)
        listed = Listed[str](self.path)
        for row in rows:
            listed.add(row, texts[row], "")
        listed.refuse_names()
        column, names = self._labels(listed)
        extents = entries.extents[np.array(listed.lines, dtype=np.int64)]
        label = {} if column is None else {"label": column}
        kind = {} if column is None else {"label": Field(str(column.dtype))}
        schema = Schema((("image", Field("bytes")), *kind.items()), names)
        versions = np.full(len(extents), file_state(str(self.path))[1])
        return Listing(
            schema,
            Keys.of(listed.names),
            extents[:, 1].copy(),
            {**label, "extent": extents},
            versions=versions,
            refused=listed.refused,
        )

    def _check_images(self, file: RandomAccessFile, entries: Entries, rows: list[int]) -> None:
        """Raises SourceError if the first values are not images."""
        for row in rows[:_TRIED]:
            try:
                inspect_image(bytes(entries.value(file, row)))
                return
            except SourceError as error:
                problem = f"the value of {entries.keys[row]!r}: {error}"
        advice = "select other keys with --option match=PATTERN; for Datums and Examples, dlio index --format lmdb"
        raise SourceError(f"{self.path} holds no encoded images, {problem}: {advice}")

    def _labels(self, listed: Listed[str]) -> tuple[Column | None, tuple[str, ...]]:
        """Returns the labels of the keys and the class names; None without labels. Refuses keys without a label."""
        if self.labels == NONE:
            return None, ()
        if self.labels != AUTO:
            return self._from_list(listed)
        if not all("/" in name for name in listed.names):
            return None, ()
        classes, labels = of_first_folders(listed.names)
        check_no_splits(self.path, classes, "select one with --option match=FOLDER/*, and labels from a list")
        return labels, classes

    def _from_list(self, listed: Listed[str]) -> tuple[Column, tuple[str, ...]]:
        """Returns the labels that a list gives to the keys."""
        lines = (_key_and_label(line.strip()) for line in read_lines(Path(self.labels)))
        given = {key.strip("\"'"): label.strip("\"'") for key, label in lines if key and label}
        missing = [row for row, name in enumerate(listed.names) if name not in given]
        listed.refuse({row: f"{self.labels} has no line for the key {listed.names[row]!r}" for row in missing})
        texts = [given[name] for name in listed.names]
        column = LabelColumn(Path(self.labels), listed.lines, texts)
        values, names = column.labels(AUTO)
        return values[listed.refuse(column.refused)], names

    def sizes(self, listing: Listing) -> Numbers:
        """Returns the size of each image, in bytes."""
        return listing.num_bytes

    def reader(self, listing: Listing) -> Prefetcher[Sample]:
        """Gives a function that reads one image, from its offset in the database, with its label."""
        file, extents = RandomAccessFile(self.path), listing.columns["extent"].tolist()

        def read(index: int) -> Fields:
            offset, num_bytes = extents[index]
            try:
                check_large(lambda: file.read(offset, HEAD_BYTES), num_bytes)
                return {"image": file.read(offset, num_bytes)}
            except (CorruptRecordError, SourceError) as error:
                raise SourceError(f"{self.path}: cannot read {listing.keys[index]!r}: {error}") from error

        return read_ahead(listing, read, file)


def _key_and_label(line: str) -> tuple[str, str]:
    """Returns what stands before the last word of a line, and the word."""
    label = re.split(f"[{_BETWEEN}]", line)[-1]
    return line[: len(line) - len(label)].rstrip(_BETWEEN), label


def _entries(file: RandomAccessFile) -> Entries:
    try:
        return read_entries(file)
    except CorruptRecordError as error:
        raise SourceError(str(error)) from error
