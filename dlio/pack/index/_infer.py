"""What several layouts need to tell a schema from the first records."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

from dlio.dataset.schema import Field, Schema
from dlio.errors import SchemaError
from dlio.formats.layouts.text_index import index_paths
from dlio.io.random_access import RandomAccessFile

MAX_RECORDS = 100
MAX_BYTES = 64 << 20
ADVICE = "say by --schema what all records hold"


def first_records(count: int, read: Callable[[int], bytes]) -> Iterator[bytes]:
    """Yields what `read` gives for the numbers of the first of `count` records, 100 or 64 MiB at most."""
    num_bytes = 0
    for number in range(min(count, MAX_RECORDS)):
        yield (data := read(number))
        num_bytes += len(data)
        if num_bytes >= MAX_BYTES:
            return


def with_index(path: Path) -> tuple[Path, ...]:
    """Returns `path` and the text index that a reader looks for beside it, if it is there."""
    index, _ = index_paths(path)
    return (path, index) if index.is_file() else (path,)


def begins_with(path: Path, num_bytes: int) -> bytes:
    """Returns up to `num_bytes` from the beginning of a regular file; nothing for anything else.

    Raises:
        StorageError: it cannot be read.
    """
    if not path.is_file():
        return b""
    with closing(RandomAccessFile(path)) as file:
        return file.read(0, min(num_bytes, file.num_bytes))


def no_key(sample: object) -> str:
    """Returns '', the key of a sample in a format without keys."""
    return ""


def legal_schema(path: Path, fields: dict[str, Field]) -> Schema:
    """Returns the schema of these fields, `image` and `label` first.

    Raises:
        SchemaError: there are none, or a name is no field's.
    """
    if not fields:
        raise SchemaError(f"{path}: its records hold nothing that dlio reads: {ADVICE}")
    order = sorted(fields, key=lambda name: ({"image": 0, "label": 1}.get(name, 2), name))
    try:
        return Schema.of({name: str(fields[name]) for name in order})
    except SchemaError as error:
        raise SchemaError(f"{path}: {error}: {ADVICE}") from None


def common_field(name: str, found: list[Field]) -> Field:
    """Returns the field that all of `found` fit: dimensions that differ vary.

    Raises:
        SchemaError: their types, or the numbers of their dimensions, differ.
    """
    if len({(kind.dtype, len(kind.shape)) for kind in found}) > 1:
        kinds = ", ".join(sorted({str(kind) for kind in found}))
        raise SchemaError(f"the field {name!r} is {kinds} in the first records: {ADVICE}")
    dims = [set(sizes) for sizes in zip(*(kind.shape for kind in found), strict=True)]
    return Field(found[0].dtype, tuple(sizes.pop() if len(sizes) == 1 else None for sizes in dims))
