"""Container formats: one module each, found by name, with a Writer and a Reader of one shard.

A format handles bytes and files only; its callers publish them and keep digests and manifests. A Writer gets a path
stem and samples; the files that it creates are the shard. To add a format, write a module that fulfils `Format` in this
folder, or in a package of yours (`--format mypackage.zarr`). The protocols say what each method does; a docstring of
the same method in a module says only what differs.

    payloads/   the content of records, for any container: Example, IRHeader, Datum, a file for each field
    layouts/    file layouts that several modules share
    readonly/   formats that are read and not written
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast, runtime_checkable

import numpy as np
import numpy.typing as npt

from dlio.dataset.sample_group import SampleGroup
from dlio.dataset.schema import Array, Sample, Schema
from dlio.errors import SchemaError, UsageError
from dlio.io import extensions
from dlio.io.random_access import Numbers, RandomAccessFile


class AppendFile(Protocol):
    """A new binary file that only grows."""

    def write(self, data: bytes | bytearray | memoryview, /) -> int:
        """Appends all of `data`."""

    def writelines(self, parts: Iterable[bytes | bytearray | memoryview], /) -> None:
        """Appends all of `parts`, one after the other."""

    def tell(self) -> int:
        """Returns the size so far, in bytes."""

    def close(self) -> None:
        """Closes the file; may be called twice."""


#: Creates a file for a writer; the writer's caller may digest the bytes on their way.
OpenFile = Callable[[Path], AppendFile]


def open_plain(path: Path) -> AppendFile:
    """Creates a plain file; an `OpenFile` that does nothing else."""
    return path.open("xb")


class Writer(Protocol):
    """Writes the samples of one shard, in order; used by one thread. `close` also ends an unfinished shard."""

    def write(self, sample: Sample) -> None:
        """Appends a sample that `Schema.check` has returned.

        Raises:
            SchemaError: this format cannot hold this value, for instance a label beyond its integer type.
        """

    def close(self) -> None:
        """Completes the files; may be called twice."""


@runtime_checkable
class GroupWriter(Protocol):
    """An optional part of a Writer: many small samples are written in less time."""

    def write_group(self, group: SampleGroup) -> bool:
        """Appends samples that follow the schema, as `write` does; False if nothing was done, so that `write` has to.

        It raises no SchemaError: then `write` has to, for the sample that it is about.
        """


@runtime_checkable
class TableWriter(Protocol):
    """An optional part of a Writer: it keeps the table of its samples inside the shard, for other programs."""

    def keep_table(self, table: bytes) -> None:
        """Takes the table of all samples that were written, `dlio.dataset.sample_table`; called before `close`."""


class Reader(Protocol):
    """Reads one shard by record number; safe for several threads at once, opened again in every process."""

    def __len__(self) -> int:
        """Returns the number of records."""

    def read(self, index: int) -> Sample:
        """Returns record `index`, 0 <= index < len, with the key as the container keeps it.

        Raises:
            CorruptRecordError: the record violates the format; names file, record and offset.
            StorageError: the file cannot be read.
        """

    def locate(self, index: int) -> tuple[Path, int | None]:
        """Returns the file that holds record `index` and its offset in bytes, None if the format has no offsets."""

    def close(self) -> None:
        """Closes the files; may be called twice."""


@runtime_checkable
class IndexedReader(Protocol):
    """A reader that scans its shard if there is no index next to it."""

    def index_text(self) -> bytes | None:
        """Returns the index that saves the scan, None if this shard cannot have one."""


@runtime_checkable
class SelfChecked(Protocol):
    """A reader that compares records by itself, by what else is known of them, where they have no checksums."""

    @property
    def checks_itself(self) -> bool:
        """Whether it does so with this shard."""


@dataclass(frozen=True, slots=True, eq=False)
class Spans:
    """Offsets of a field's values in a shard's file, as far as they are known without reading records.

    An offset may be wrong for a record that another tool has written: the caller compares a checksum, and falls back to
    `Reader.read` if it differs.

    Attributes:
        file: the shard's file.
        starts, stops: the bounds of each record, in bytes of `file`; int64 of shape (n,).
        gaps: bytes between a record's start, or the end of the marker, and the value; int64 of shape (n,).
        marker: bytes to search in the first 512 of a record; empty if no search is needed.
        order: puts the values of arrays in row-major order: n of them, uint8 of shape (n, size); None if they lie so.
    """

    file: RandomAccessFile
    starts: Numbers
    stops: Numbers
    gaps: Numbers
    marker: bytes = b""
    order: Callable[[npt.NDArray[np.uint8]], npt.NDArray[np.uint8]] | None = None


@runtime_checkable
class SpanReader(Protocol):
    """A Reader that knows the offsets of values, so that those of many records are read at once."""

    def spans(self, name: str, sizes: Numbers) -> Spans | None:
        """Returns the offsets of the values of a field of bytes, None if only `read` finds them.

        Args:
            name: the field.
            sizes: the size of each record's value in bytes; int64 of shape (n,).
        """


class Format(Protocol):
    """The members of a format's module."""

    @property
    def SUFFIX(self) -> str:  # noqa: N802  a constant of the module
        """Added to a shard's stem to name the file, or folder, that holds its records."""

    def refuses(self, schema: Schema) -> str | None:
        """Returns why this format cannot hold samples of `schema`, naming the field, or None if it can."""

    def Writer(self, stem: Path, schema: Schema, open_file: OpenFile = ...) -> Writer:  # noqa: N802
        """Starts a shard whose file names begin with `stem`."""

    def Reader(self, path: Path, schema: Schema) -> Reader:  # noqa: N802
        """Opens the shard whose records are in `path`.

        All uncompressed records together take no more bytes than the file: that bounds the memory of a batch.

        Raises:
            CorruptRecordError: the file or its index is damaged, or records overlap.
            StorageError: it cannot be read.
            MissingPackageError: the format's own package is not installed.
        """


@runtime_checkable
class PathFormat(Protocol):
    """A format whose records are files named by their keys, so that it cannot hold every key."""

    def refused_keys(self, schema: Schema, keys: Iterable[str]) -> dict[int, str]:
        """Returns the numbers of the keys that it cannot hold, or not together with those before, with reasons."""


@runtime_checkable
class ApartFormat(Protocol):
    """A format whose records can be separate files, so that the first file of a shard is not there."""

    def lies_apart(self, path: Path) -> bool:
        """Returns whether it is so with the shard whose first file would be `path`."""


class WrittenPart(Protocol):
    """What `PartFormat.PartWriter` has written: bytes from `start` to `stop` of the shard's file, with this digest."""

    @property
    def start(self) -> int:
        """Where the samples begin, in bytes."""

    @property
    def stop(self) -> int:
        """Where they end, in bytes."""

    @property
    def digest(self) -> str:
        """`algorithm:hex` of the bytes."""


@runtime_checkable
class PartFormat(Protocol):
    """A format whose shard many workers can write together, each its part of the samples at a place known before."""

    @property
    def PLACE_BYTES(self) -> int:  # noqa: N802
        """Places begin at multiples of this number, the first one at this number."""

    def takes_parts(self, schema: Schema) -> bool:
        """Returns whether that is so for this schema, if the size of each sample's bytes is known."""

    def PartWriter(  # noqa: N802
        self, file: Path, place: range, stem: Path, schema: Schema, open_file: OpenFile = ...
    ) -> Writer:
        """Starts a part: its samples go to `place` of the existing `file`; other files' names begin with `stem`."""

    def load_part(self, stem: Path, start: int) -> WrittenPart:
        """Returns a part by its `stem`, and by where its place begins; raises CorruptRecordError, StorageError."""

    def join_parts(
        self, file: Path, schema: Schema, parts: Sequence[Any], columns: Mapping[str, Array], table: bytes
    ) -> None:
        """Completes a shard, given its parts in order, and the small numbers and the table of all samples."""


def names() -> list[str]:
    """Returns the names of the formats in this folder, sorted."""
    return extensions.names(__path__)


def read_only_names() -> list[str]:
    """Returns the names of the formats in the folder `readonly`, which are read and never written, sorted."""
    return extensions.names([f"{__path__[0]}/readonly"])


def load(name: str) -> Format:
    """Returns the format of this name, or the module of this dotted path if it is already imported.

    Names come from manifests, and importing a module runs it: a manifest never imports a module of another package.

    Raises:
        UsageError: the format is unknown, or its module is not imported.
    """
    if "." in name and name not in sys.modules:
        raise UsageError(f"the format {name!r} is a module of another package: if you trust it, `import {name}` first")
    return import_format(name)


def import_format(name: str) -> Format:
    """Returns the format that the user names, importing its module if it is of another package.

    Raises:
        UsageError: the format is unknown.
    """
    if name in read_only_names():
        return cast(Format, importlib.import_module(f"{__name__}.readonly.{name}"))
    members = ("SUFFIX", "refuses", "Writer", "Reader")
    return cast(Format, extensions.load(name, "a format", __name__, names(), members))


def require(name: str, schema: Schema) -> Format:
    """Returns the format `name`, which can hold `schema`.

    Raises:
        SchemaError: it cannot; the message names the field, the format, and formats that can.
        UsageError: the format is unknown.
    """
    reason = import_format(name).refuses(schema)
    if reason is None:
        return load(name)
    able = [other for other in names() if load(other).refuses(schema) is None]
    raise SchemaError(f"{name} cannot hold this data set: {reason}; formats that can: {', '.join(able) or 'none'}")
