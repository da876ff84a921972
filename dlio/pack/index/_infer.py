"""Inferring a schema from the first records, for several layouts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from dlio.dataset.schema import Field, Sample, Schema
from dlio.errors import SchemaError
from dlio.formats.layouts.text_index import index_paths

MAX_RECORDS = 100
MAX_BYTES = 64 << 20
ADVICE = "give the schema of all records with --schema, or schema="


def first_records(count: int, read: Callable[[int], bytes]) -> Iterator[bytes]:
    """Yields the first of `count` records, read by number, at most 100 of them or 64 MiB."""
    num_bytes = 0
    for number in range(min(count, MAX_RECORDS)):
        yield (data := read(number))
        num_bytes += len(data)
        if num_bytes >= MAX_BYTES:
            return


def with_index(path: Path) -> tuple[Path, ...]:
    """Returns `path` and the text index next to it, if there is one."""
    index, _ = index_paths(path)
    return (path, index) if index.is_file() else (path,)


def no_keys(records: Path) -> Callable[[Sample], str]:
    """Returns a function to '', the key of a sample in a format without keys."""
    return lambda sample: ""


def own_keys(records: Path) -> Callable[[Sample], str]:
    """Returns a function to the key that the format's reader gives a sample."""
    return lambda sample: sample.key


def legal_schema(path: Path, fields: dict[str, Field]) -> Schema:
    """Returns the schema of these fields, `image` and `label` first; raises SchemaError if it is none."""
    if not fields:
        raise SchemaError(f"{path}: its records have no fields that dlio reads: {ADVICE}")
    order = sorted(fields, key=lambda name: ({"image": 0, "label": 1}.get(name, 2), name))
    try:
        return Schema.of({name: str(fields[name]) for name in order})
    except SchemaError as error:
        raise SchemaError(f"{path}: {error}: {ADVICE}") from None


def common_field(name: str, found: list[Field]) -> Field:
    """Returns the field that fits all of `found`; a dimension that differs becomes variable; raises SchemaError."""
    if len({(kind.dtype, len(kind.shape)) for kind in found}) > 1:
        kinds = ", ".join(sorted({str(kind) for kind in found}))
        raise SchemaError(f"the field {name!r} is {kinds} in the first records: {ADVICE}")
    dims = [set(sizes) for sizes in zip(*(kind.shape for kind in found), strict=True)]
    return Field(found[0].dtype, tuple(sizes.pop() if len(sizes) == 1 else None for sizes in dims))
