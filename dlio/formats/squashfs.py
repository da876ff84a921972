"""SquashFS: a file system in one file, which a program sees as a folder once it is mounted, and dlio reads by offset.

`layouts/squashfs/` has the layout of the image, `payloads/paths.py` the paths of the samples' files, and the hidden
files by which an image describes itself. A shard is one image, `NAME.sqsh`:

    - every file is stored uncompressed, so its bytes are contiguous: in blocks of 128 KiB, without fragments
    - files lie in the order of the samples, and their inode numbers count them from 1; the hidden files come next
    - equal samples give equal bytes: owner 0, mtime 0, mode 0444

A key must be a path that such a file system can hold, and not the folder of another key: a sample with another key is
refused, rather than renamed silently. SquashFS has no checksums of data.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import BinaryIO

import numpy as np

from dlio.dataset.sample_group import SampleGroup
from dlio.dataset.schema import Array, Sample, Schema
from dlio.errors import corrupt_errors
from dlio.formats import OpenFile, Spans, open_plain
from dlio.formats.layouts.squashfs.blocks import Image
from dlio.formats.layouts.squashfs.metadata import SUPERBLOCK_BYTES
from dlio.formats.layouts.squashfs.records import FolderRecords, HiddenFiles, OwnRecords
from dlio.formats.layouts.squashfs.samples import PART_SUFFIX, PLACE_BYTES, Part, SampleFiles, is_single
from dlio.formats.payloads import members, paths
from dlio.io.digesting_file import DigestingFile
from dlio.io.files import closed_on_error, storage_errors
from dlio.io.random_access import Numbers, RandomAccessFile

SUFFIX = ".sqsh"
_BUFFER_BYTES = 16 << 10  # larger files are written without a copy
refused_keys = paths.refused_keys
takes_parts = is_single  # by many workers: a sample is one image's file, so its size is known


def refuses(schema: Schema) -> str | None:
    """Returns why SquashFS cannot hold this schema, naming the field, or None if it can."""
    if not len(schema):
        return "it has no fields, and squashfs stores each field of a sample as a file"
    seen: dict[str, str] = {}
    for name in schema:
        if (other := seen.setdefault(name.lower(), name)) != name:
            return f"the fields {other!r} and {name!r} differ only in case, which file names must not"
    return None


class Writer:
    """Writes the image of a shard; its superblock is written last, so `open_file` is not called."""

    def __init__(self, stem: Path, schema: Schema, open_file: OpenFile = open_plain) -> None:
        self._path, self._table = stem.with_name(stem.name + SUFFIX), b""
        with storage_errors("create", self._path):
            self._file = self._path.open("xb", buffering=_BUFFER_BYTES)
            self._file.write(bytes(SUPERBLOCK_BYTES))
        self._samples = SampleFiles(stem.name, schema, self._file, self._path, SUPERBLOCK_BYTES)

    def write(self, sample: Sample) -> None:
        """Appends a sample.

        Raises:
            SchemaError: its key cannot be a path in this image.
        """
        self._samples.write(sample)

    def write_group(self, group: SampleGroup) -> bool:
        """Appends images whose keys are paths of images; False if there is another sample."""
        return self._samples.write_group(group)

    def keep_table(self, table: bytes) -> None:
        """Takes the table of the samples, which `close` adds to the image."""
        self._table = table

    def close(self) -> None:
        if not self._file.closed:
            with storage_errors("write", self._path), closing(self._file):
                _complete(self._file, self._samples, self._table)


class PartWriter:
    """Writes some samples of an image at their place in it, and the file `STEM.files.npz` that `join_parts` needs."""

    def __init__(self, image: Path, place: range, stem: Path, schema: Schema, open_file: OpenFile = open_plain) -> None:
        self._left, self._open_file = stem.with_name(stem.name + PART_SUFFIX), open_file
        self._file: DigestingFile | None = DigestingFile(image, begin=place.start)
        self._samples = SampleFiles(stem.name, schema, self._file, image, place.start, place.stop)

    def write(self, sample: Sample) -> None:
        """Appends a sample; raises as `Writer.write`, and SourceError if the place is too small for it."""
        self._samples.write(sample)

    def write_group(self, group: SampleGroup) -> bool:
        """Appends samples as `Writer.write_group`."""
        return self._samples.write_group(group)

    def close(self) -> None:
        if self._file is not None:
            file, self._file = self._file, None
            file.close()
            with closing(self._open_file(self._left)) as left:
                left.write(self._samples.part(file.digest).save())


def load_part(stem: Path, start: int) -> Part:
    """Returns what a `PartWriter` has written; raises CorruptRecordError, StorageError."""
    return Part.load(stem.with_name(stem.name + PART_SUFFIX), start)


def join_parts(image: Path, schema: Schema, parts: Sequence[Part], columns: Mapping[str, Array], table: bytes) -> None:
    """Completes an image whose samples a `PartWriter` has written for each part.

    Args:
        image: the image.
        schema: the schema of the samples.
        parts: its parts, in the order of their places.
        columns: the values of the small fields of all samples.
        table: the table of all samples.
    """
    end = -(-max([SUPERBLOCK_BYTES, *(part.stop for part in parts)]) // PLACE_BYTES) * PLACE_BYTES
    with storage_errors("write", image), image.open("r+b", buffering=_BUFFER_BYTES) as file:
        file.seek(end)
        samples = SampleFiles(image.name.removesuffix(SUFFIX), schema, file, image, end)
        samples.adopt(parts, columns)
        _complete(file, samples, table)


def _complete(file: BinaryIO, samples: SampleFiles, table: bytes) -> None:
    """Writes what follows the samples, where `file` is, and then the superblock."""
    superblock, tail = samples.complete(table)
    file.writelines(tail)
    file.truncate()
    file.seek(0)
    file.write(superblock)


class Reader:
    """Reads the image of a shard by record number: dlio's, or one of another tool whose folders are classes."""

    def __init__(self, path: Path, schema: Schema) -> None:
        self._schema = schema
        self._file = RandomAccessFile(path)
        with closed_on_error(self._file), corrupt_errors(path, "{}: restore the image"):
            self._image = Image(self._file)
            own = HiddenFiles.of(self._image)
            self._records: OwnRecords | FolderRecords = (
                OwnRecords(self._image, own, schema) if own else FolderRecords(self._image, schema)
            )

    def __len__(self) -> int:
        return len(self._records)

    def locate(self, index: int) -> tuple[Path, int | None]:
        """Returns the image and the offset of the record's first file in it, in bytes."""
        return self._file.path, int(self._image.files.start[self._records.files(index)[0]])

    def read(self, index: int) -> Sample:
        path, offset = self.locate(index)
        with corrupt_errors(path, "{}: restore the image", record=index, offset=offset):
            return self._records.read(index)

    def spans(self, name: str, sizes: Numbers) -> Spans | None:
        """Returns the offsets of a field's values; 0 for those that are compressed, or end in a shared block."""
        found = self._records.column_of_files(name)
        if found is None:
            return None
        files = self._image.files
        starts = np.where(files.is_stored[found], files.start[found], 0)
        stops = starts + np.where(files.is_stored[found], files.size[found], 0)
        return Spans(self._file, starts, stops, members.gaps(self._schema[name], stops - starts, sizes))

    def close(self) -> None:
        self._file.close()
