"""Container formats: one module each, found by name, that holds a Writer and a Reader of one shard.

A format knows bytes and files. It knows nothing of atomicity, digests, manifests or clusters: the writer gets a path
stem and samples, and whatever files it leaves there are the shard. To add a format, add a module to this folder, or
name a module of your own package with its dots (`--format mypackage.zarr`); it fulfils `Format`.

    payloads/   what records hold, whatever the container: Example, IRHeader, Datum, a file for each field
    layouts/    how some containers' files are laid out, where more than one module has to know
    readonly/   formats that are read and not written
"""

from __future__ import annotations

import importlib
import pkgutil
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, cast, runtime_checkable

from dlio.dataset.schema import Sample, Schema
from dlio.errors import SchemaError, UsageError
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


#: Creates a file for a writer; the caller of the writer decides what else happens to the bytes on their way.
OpenFile = Callable[[Path], AppendFile]


def open_plain(path: Path) -> AppendFile:
    """Creates a plain file; the `OpenFile` to use where nobody watches the bytes."""
    return path.open("xb")


class Writer(Protocol):
    """Writes the samples of one shard, in order; used by one thread; an unfinished one may be dropped after `close`."""

    def write(self, sample: Sample) -> None:
        """Appends a sample that `Schema.check` has returned.

        Raises:
            SchemaError: this format cannot hold this value, for instance a label beyond its integer type.
        """

    def close(self) -> None:
        """Completes the files; may be called twice."""


class Reader(Protocol):
    """Reads one shard by record number; safe for several threads at once, opened anew in every process."""

    def __len__(self) -> int:
        """Returns the number of records."""

    def read(self, index: int) -> Sample:
        """Returns record `index`, 0 <= index < len; its key is what the container itself keeps of it.

        Raises:
            CorruptRecordError: the record is not what the format prescribes; names file, record and offset.
            StorageError: the file cannot be read.
        """

    def locate(self, index: int) -> tuple[Path, int | None]:
        """Returns the file that holds record `index` and its offset in bytes, None where the format has none."""

    def close(self) -> None:
        """Closes the files; may be called twice."""


@runtime_checkable
class IndexedReader(Protocol):
    """A reader that has to scan its shard where no index is beside it."""

    def index_text(self) -> bytes | None:
        """Returns the index that saves the scan, None where the shard can have none."""


@dataclass(frozen=True, slots=True, eq=False)
class Spans:
    """Where the values of a field lie in a shard's file, as far as this is known without reading records.

    A place may be wrong, in a record that another tool has written: whoever reads there compares a checksum, and turns
    to `Reader.read` where it differs.

    Attributes:
        file: the shard's file.
        starts, stops: the bounds of what of each record is to be read, in bytes of `file`; int64 of shape (n,).
        gaps: how far behind its start, or behind the marker, a value begins; int64 of shape (n,).
        marker: bytes to look for in the first 512 behind a start; empty where no look is needed.
    """

    file: RandomAccessFile
    starts: Numbers
    stops: Numbers
    gaps: Numbers
    marker: bytes = b""


@runtime_checkable
class SpanReader(Protocol):
    """What a Reader may do besides: tell where values lie, so that those of many records are read at once."""

    def spans(self, name: str, sizes: Numbers) -> Spans | None:
        """Returns where the values of a field of bytes lie, None where only `read` finds them.

        Args:
            name: the field.
            sizes: the size of each record's value in bytes; int64 of shape (n,).
        """


class Format(Protocol):
    """What a format's module holds."""

    @property
    def SUFFIX(self) -> str:  # noqa: N802  a constant of the module
        """What is added to a shard's stem to name the file, or folder, that holds its records."""

    def refuses(self, schema: Schema) -> str | None:
        """Returns why this format cannot hold samples of `schema`, naming the field, or None if it can."""

    def Writer(self, stem: Path, schema: Schema, open_file: OpenFile = ...) -> Writer:  # noqa: N802
        """Starts a shard whose files' names begin with `stem`."""

    def Reader(self, path: Path, schema: Schema) -> Reader:  # noqa: N802
        """Opens the shard whose records are in `path`.

        Records that lie in the file as they are take no more bytes than it has, all together: that bounds a batch.

        Raises:
            CorruptRecordError: the file, or its index, is damaged, or tells of records that overlap.
            StorageError: it cannot be read.
            MissingPackageError: the format's own package is not installed.
        """


def names() -> list[str]:
    """Returns the names of the formats in this folder, sorted."""
    return _modules(__path__[0])


def read_only_names() -> list[str]:
    """Returns the names of the formats in the folder `readonly`, which are read and never written, sorted."""
    return _modules(f"{__path__[0]}/readonly")


def _modules(folder: str) -> list[str]:
    modules = pkgutil.iter_modules([folder])
    return sorted(module.name for module in modules if not module.ispkg and not module.name.startswith("_"))


def load(name: str) -> Format:
    """Returns the format of this name, or the module of this dotted path if it is imported already.

    Names come from manifests, and importing a module runs it: so a manifest alone never imports one of another package.

    Raises:
        UsageError: there is no such format, or its module is not imported.
    """
    if "." not in name:
        if name in read_only_names():
            return cast(Format, importlib.import_module(f"{__name__}.readonly.{name}"))
        if name not in names():
            raise UsageError(f"{name!r} is no format: expected one of {', '.join(names())}, or a module's dotted path")
        return cast(Format, importlib.import_module(f"{__name__}.{name}"))
    if name not in sys.modules:
        raise UsageError(f"the format {name!r} is a module of another package: if you trust it, `import {name}` first")
    module = sys.modules[name]
    missing = [member for member in ("SUFFIX", "refuses", "Writer", "Reader") if not hasattr(module, member)]
    if missing:
        raise UsageError(f"the module {name!r} is no format: it has no {', '.join(missing)} (see dlio.formats.Format)")
    return cast(Format, module)


def import_format(name: str) -> Format:
    """Returns the format that the user names, importing its module where that is of another package.

    Raises:
        UsageError: there is no such format.
    """
    if "." in name:
        try:
            importlib.import_module(name)
        except (ImportError, ValueError, TypeError) as error:
            raise UsageError(f"the format {name!r} cannot be imported: {error}") from error
    return load(name)


def require(name: str, schema: Schema) -> Format:
    """Returns the format `name`, which can hold `schema`.

    Raises:
        SchemaError: it cannot; the message names the field, the format, and formats that can.
        UsageError: there is no such format.
    """
    reason = import_format(name).refuses(schema)
    if reason is None:
        return load(name)
    able = [other for other in names() if load(other).refuses(schema) is None]
    raise SchemaError(f"{name} cannot hold this data set: {reason}; formats that can: {', '.join(able) or 'none'}")
