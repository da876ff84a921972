"""SquashFS: a file system in one file, which a program sees as a folder once it is mounted, and dlio reads by offset.

`layouts/squashfs/` has the layout of the image, `payloads/paths.py` the paths of the samples' files, and the hidden
files by which an image describes itself. A shard is one image, `NAME.sqsh`:

    - every file is stored as it is, so its bytes are contiguous: in blocks of 128 KiB, without fragments
    - files lie in the order of the samples, and their inode numbers count them from 1; the hidden files come next
    - equal samples give equal bytes: owner 0, mtime 0, mode 0444

A key must be a path that such a file system can hold, and not the folder of another key: a sample with another key is
refused, rather than renamed in silence. SquashFS has no checksums of data.
"""

from __future__ import annotations

from array import array
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from dlio.dataset.sample_group import SampleGroup
from dlio.dataset.schema import Sample, Schema
from dlio.errors import CorruptRecordError, SchemaError
from dlio.formats import OpenFile, Spans, open_plain
from dlio.formats.layouts.squashfs.blocks import Image
from dlio.formats.layouts.squashfs.metadata import SUPERBLOCK_BYTES
from dlio.formats.layouts.squashfs.records import FolderRecords, HiddenFiles, OwnRecords
from dlio.formats.layouts.squashfs.tables import image_tables
from dlio.formats.payloads import members, npy, paths
from dlio.io.files import closed_on_error, storage_errors
from dlio.io.random_access import Numbers, RandomAccessFile

SUFFIX = ".sqsh"
_BUFFER_BYTES = 256 << 10
refused_keys = paths.refused_keys


def refuses(schema: Schema) -> str | None:
    """Returns why SquashFS cannot hold this schema, naming the field, or None if it can."""
    if not len(schema):
        return "it has no fields, and a sample is kept as its fields' files"
    seen: dict[str, str] = {}
    for name in schema:
        if (other := seen.setdefault(name.lower(), name)) != name:
            return f"the fields {other!r} and {name!r} differ only in case, which the names of files do not"
    return None


class Writer:
    """Writes the image of a shard; its superblock is written last, so `open_file` is not called."""

    def __init__(self, stem: Path, schema: Schema, open_file: OpenFile = open_plain) -> None:
        self._schema = schema
        self._stem = paths.stem_of(stem.name)
        self._kept = paths.file_schema(schema)
        self._encode = members.encoder(self._kept)
        self._columns: dict[str, list[Any]] = {name: [] for name in paths.column_names(schema)}
        self._is_single = self._kept.types() == {"image": "bytes"}
        self._names, self._paths = paths.Paths(), list[bytes]()
        self._starts, self._sizes, self._counts = array("q"), array("q"), array("q")
        self._position, self._table = SUPERBLOCK_BYTES, b""
        self._path = stem.with_name(stem.name + SUFFIX)
        with storage_errors("create", self._path):
            self._file = self._path.open("xb", buffering=_BUFFER_BYTES)
            self._file.write(bytes(SUPERBLOCK_BYTES))

    def write(self, sample: Sample) -> None:
        """Appends a sample.

        Raises:
            SchemaError: its key cannot be a path in this image.
        """
        try:
            files = self._named(sample)
            for path, _ in files:
                self._names.add(path)
        except ValueError as error:
            advice = "give it another key, or use tfrecord, which holds any key"
            raise SchemaError(f"sample {sample.key!r}: squashfs cannot hold this key: {error}: {advice}") from None
        with storage_errors("write", self._path):
            for path, content in files:
                self._add(path, content)
        self._counts.append(len(files))
        for name, values in self._columns.items():
            values.append(sample.fields[name])

    def _named(self, sample: Sample) -> list[tuple[bytes, bytes]]:
        """Returns path and content of each file of a sample, the paths not taken yet."""
        wanted, contents = paths.path_of(sample.key), self._encode(sample)
        for number in count(len(self._counts) - 1):
            path = paths.tagged(wanted, number) if number >= len(self._counts) else wanted
            files = paths.named(path, contents)
            if not any(self._names.has(path) for path, _ in files):
                break
        return files

    def _add(self, path: bytes, content: bytes) -> None:
        self._file.write(content)
        self._paths.append(path)
        self._starts.append(self._position)
        self._sizes.append(len(content))
        self._position += len(content)

    def write_group(self, group: SampleGroup) -> bool:
        """Appends images whose keys are paths of images; False if there is another sample."""
        if not self._is_single:
            return False
        images, added = group.pieces("image"), list(group.keys)
        try:
            legal = [paths.path_of(key.decode()) for key in added]
        except ValueError:
            return False
        if not all(map(paths.has_image_extension, legal)) or not self._names.add_all(legal):
            return False
        with storage_errors("write", self._path):
            self._file.write(images.joined())
        self._paths += legal
        self._starts.frombytes((images.bounds[:-1] - images.bounds[0] + self._position).tobytes())
        self._sizes.frombytes(images.sizes.tobytes())
        self._counts.frombytes(np.ones(len(group), np.int64).tobytes())
        self._position += int(images.bounds[-1] - images.bounds[0])
        for name, values in self._columns.items():
            values += group.numbers(name).tolist()
        return True

    def keep_table(self, table: bytes) -> None:
        """Takes the table of the samples, which `close` adds to the image."""
        self._table = table

    def close(self) -> None:
        """Completes the image."""
        if self._file.closed:
            return
        with storage_errors("write", self._path), closing(self._file):
            for suffix, content in self._hidden().items():
                self._add(self._stem + suffix, content)
            starts, sizes = (np.frombuffer(values, np.int64) for values in (self._starts, self._sizes))
            superblock, tail = image_tables(self._paths, starts, sizes, self._position)
            self._file.writelines(tail)
            self._file.seek(0)
            self._file.write(superblock)

    def _hidden(self) -> dict[bytes, bytes]:
        """Returns the content of the files by which the image describes itself, by the end of their names."""
        counts = np.frombuffer(self._counts, np.int64)
        columns = {name: paths.column_file(values, name, self._schema) for name, values in self._columns.items()}
        found = {b".%b.npy" % name.encode(): npy.encode(values) for name, values in columns.items()}
        if len(set(counts.tolist()) - {len(self._kept)}):
            found[paths.COUNTS] = npy.encode(counts)
        firsts = [self._paths[first] for first in (np.cumsum(counts) - counts).tolist()]
        found[b".labels.csv"] = paths.labels_csv(firsts, columns)
        if self._table:
            found[paths.TABLE] = self._table
        found[paths.DESCRIPTION] = paths.Description(self._schema, len(counts)).to_bytes()
        return found


class Reader:
    """Reads the image of a shard by record number: dlio's, or one of another tool whose folders are classes."""

    def __init__(self, path: Path, schema: Schema) -> None:
        self._schema = schema
        self._file = RandomAccessFile(path)
        with closed_on_error(self._file):
            self._image = Image(self._file)
            try:
                own = HiddenFiles.of(self._image)
                self._records: OwnRecords | FolderRecords = (
                    OwnRecords(self._image, own, schema) if own else FolderRecords(self._image, schema)
                )
            except CorruptRecordError:
                raise
            except (ValueError, OverflowError) as error:
                raise CorruptRecordError(path, f"{error}: restore the image") from error

    def __len__(self) -> int:
        return len(self._records)

    def locate(self, index: int) -> tuple[Path, int | None]:
        """Returns the image and the offset of the record's first file in it, in bytes."""
        return self._file.path, int(self._image.files.start[self._records.files(index)[0]])

    def read(self, index: int) -> Sample:
        """Returns record `index`."""
        try:
            return self._records.read(index)
        except CorruptRecordError:
            raise
        except (ValueError, OverflowError) as error:
            path, offset = self.locate(index)
            raise CorruptRecordError(path, f"{error}: restore the image", record=index, offset=offset) from error

    def spans(self, name: str, sizes: Numbers) -> Spans | None:
        """Returns the offsets of a field's values; 0 for those that are compressed, or end in a shared block."""
        found = self._records.column_of_files(name)
        if found is None:
            return None
        files = self._image.files
        starts = np.where(files.is_stored[found], files.start[found], 0)
        stops = starts + np.where(files.is_stored[found], files.size[found], 0)
        return Spans(self._file, starts, stops, sizes * 0 + members.header_bytes(self._schema[name]))

    def close(self) -> None:
        """Closes the file."""
        self._file.close()
