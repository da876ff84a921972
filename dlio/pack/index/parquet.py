"""Parquet files of Hugging Face whose images are stored unchanged in the file; class names from their metadata."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from dlio.dataset.schema import Schema
from dlio.errors import SchemaError
from dlio.formats.layouts.parquet import ParquetFile, require_plain
from dlio.formats.layouts.parquet_pages import MAGIC
from dlio.formats.payloads.arrow import class_names, columns, readable_columns, schema_of
from dlio.io.random_access import RandomAccessFile
from dlio.pack.index._infer import ADVICE, own_keys

keys = own_keys


def files(path: Path) -> tuple[Path, ...]:
    """Returns the shard at `path`, a file that begins and ends with Parquet's signature."""
    if not path.is_file():
        return ()
    with closing(RandomAccessFile(path)) as file:
        is_whole = file.num_bytes > 12 and file.read(0, 4) == file.read(file.num_bytes - 4, 4) == MAGIC
    return (path,) if is_whole else ()


def infer(records: Path) -> Schema:
    """Returns the schema of a file's columns, whose images can be read in place."""
    with closing(ParquetFile(RandomAccessFile(records))) as file:
        try:
            taken = readable_columns(file.schema)
            schema = schema_of(file.schema, taken)
        except SchemaError as error:
            raise SchemaError(f"{records}: {error}: {ADVICE}") from None
        for name, column in taken.items():
            if column.kind is not None and column.kind.dtype == "bytes":
                if not column.kind.is_scalar:
                    advice = "pack it with --source parquet, or choose other columns with --schema"
                    raise SchemaError(f"{records}: the column {name!r} has lists of images: {advice}")
                require_plain(file, name, column)
    return schema


def listed_classes(records: Path, schema: Schema) -> tuple[str, ...]:
    """Returns the class names that the metadata of a file list."""
    with closing(ParquetFile(RandomAccessFile(records))) as file:
        found = columns(file.schema)
        return class_names(file.schema, {name: found[name] for name in schema if name in found})
