"""MDS folders of MosaicML Streaming: the shards in `index.json`, with the columns of their configuration."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from dlio.dataset.schema import Field, Sample, Schema
from dlio.errors import CorruptRecordError, SchemaError, SourceError
from dlio.formats.layouts.aliases import field_names
from dlio.formats.readonly.mds import read_columns, read_offsets
from dlio.io.files import storage_errors
from dlio.io.random_access import RandomAccessFile
from dlio.pack.index._infer import legal_schema, no_key

INDEX = "index.json"


def listed(root: Path) -> list[str] | None:
    """Returns the files that `index.json` lists; None without an index.

    Raises:
        SourceError: a file is missing, or is only kept compressed.
        CorruptRecordError: the index is damaged.
        StorageError: the index cannot be read.
    """
    path = root / INDEX
    if not path.is_file():
        return None
    with storage_errors("read", path):
        text = path.read_bytes()
    try:
        names = [str(shard["raw_data"]["basename"]) for shard in json.loads(text)["shards"]]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise CorruptRecordError(path, f"it is not an index of MDS ({error!r}): restore it") from error
    for name in names:
        if "/" in name or not os.path.isfile(root / name):  # noqa: PTH113  a Path's raises where a name is too long
            raise SourceError(
                f"{path} lists {name!r}, which does not exist: restore it, or write it without compression"
            )
    return names


def files(path: Path) -> tuple[Path, ...]:
    """Returns the shard at `path`, a file whose offsets lead to its end."""
    if not path.is_file():
        return ()
    with closing(RandomAccessFile(path)) as file:
        try:
            read_offsets(file)
        except CorruptRecordError:
            return ()
    return (path,)


def infer(records: Path) -> Schema:
    """Returns the schema of a shard's columns."""
    with closing(RandomAccessFile(records)) as file:
        columns = read_columns(file)
    held = field_names([column.name for column in columns])
    fields: dict[str, Field] = {}
    for column in columns:
        if column.field is None:
            problem = f"the column {column.name!r} is encoded as {column.encoding!r}"
            raise SchemaError(f"{records}: {problem}, which dlio does not read: name the columns to use with --schema")
        is_label = held[column.name] == "label" and column.field.is_scalar and column.field.dtype.startswith("int")
        fields[held[column.name]] = Field("int64") if is_label else column.field
    return legal_schema(records, fields)


def keys(records: Path) -> Callable[[Sample], str]:
    """Returns a function to '', since MDS has no keys."""
    return no_key
