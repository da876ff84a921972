"""MDS folders of MosaicML Streaming: the shards in `index.json`, with the columns of their configuration."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from dlio.dataset.schema import Field, Schema
from dlio.errors import CorruptRecordError, SchemaError, SourceError
from dlio.formats.layouts.aliases import field_names
from dlio.formats.readonly.mds import read_columns, read_offsets
from dlio.io.random_access import RandomAccessFile, read_whole
from dlio.pack.index._infer import legal_schema, no_keys

INDEX = "index.json"
keys = no_keys


def listed(root: Path) -> list[str] | None:
    """Returns the files that `index.json` lists; None without an index; raises as `names_in`."""
    path = root / INDEX
    if not path.is_file():
        return None
    return names_in(path, "MDS", lambda index: [shard["raw_data"]["basename"] for shard in index["shards"]])


def names_in(path: Path, library: str, names_of: Callable[[Any], list[object]]) -> list[str]:
    """Returns the files that the index of a library lists.

    Raises:
        SourceError: a file is missing, or is only kept compressed.
        CorruptRecordError: the index is damaged.
        StorageError: the index cannot be read.
    """
    text = read_whole(path)
    try:
        names = list(map(str, names_of(json.loads(text))))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise CorruptRecordError(path, f"it is not an index of {library} ({error!r}): restore it") from error
    for name in names:
        # a Path's raises where a name is too long
        if "/" in name or not os.path.isfile(path.parent / name):  # noqa: PTH113
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
