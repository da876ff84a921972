"""Columns of Arrow tables as fields: of Parquet files, and of Hugging Face's saved data sets. Needs pyarrow.

    Arrow                                           field
    binary, struct<bytes: binary, path: string>     bytes: an encoded image
    string                                          str
    bool, int8 ... uint64, float16 ... float64      that number; int64 for `label`
    list<...> of these                              an array or a list; of any length, or of the list's own
    struct<a, b>                                    their own fields: `NAME_a`, `NAME_b`

`img` and the like are read as `image` (`layouts.aliases`). Letters that a field's name cannot have become `_`. Class
names are those of Hugging Face's ClassLabel, in the schema's metadata.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from dlio.dataset.schema import NUMBER_TYPES, Array, Field, Schema, Value
from dlio.errors import SchemaError, library_errors, needs_package
from dlio.formats.layouts.aliases import field_names

if TYPE_CHECKING:
    import pyarrow


reading = partial(library_errors, "Arrow")
_FLOATS = {"halffloat": "float16", "float": "float32", "double": "float64"}


def load_pyarrow() -> Any:
    """Returns the package pyarrow, with its modules compute, ipc and parquet.

    Raises:
        MissingPackageError: it is not installed.
    """
    with needs_package("pyarrow", "parquet", "Parquet"):
        import pyarrow
        import pyarrow.compute
        import pyarrow.ipc
        import pyarrow.parquet
    return pyarrow


@dataclass(frozen=True, slots=True)
class ArrowColumn:
    """A column, or a part of a struct.

    Attributes:
        path: its name, after those of the structs around it.
        kind: the field that its values make; None if dlio does not read its type.
        type: Arrow's name of its type.
        is_media: whether its values are structs of `bytes` and `path`.
    """

    path: tuple[str, ...]
    kind: Field | None
    type: str
    is_media: bool

    def values(self, batch: pyarrow.RecordBatch | pyarrow.Table) -> pyarrow.Array:
        """Returns the array of a record batch's, or a table's, values."""
        return _leaf(batch, (*self.path, "bytes") if self.is_media else self.path)

    def names(self, batch: pyarrow.RecordBatch | pyarrow.Table) -> pyarrow.Array:
        """Returns the array of the paths that the images of a record batch, or of a table, have."""
        return _leaf(batch, (*self.path, "path"))

    def name_buffers(self, batch: pyarrow.RecordBatch) -> Iterator[pyarrow.Buffer]:
        """Yields the buffers of a record batch that `names` reads."""
        name, *rest = self.path
        array = batch.column(name)
        for each in (*rest, "path"):
            yield from filter(None, array.buffers()[:1])  # which are null
            array = array.field(each)
        yield from filter(None, array.buffers())


def _leaf(batch: pyarrow.RecordBatch | pyarrow.Table, path: tuple[str, ...]) -> pyarrow.Array:
    array = batch.column(path[0])
    for name in path[1:]:
        array = load_pyarrow().compute.struct_field(array, name)
    return array


def columns(schema: pyarrow.Schema) -> dict[str, ArrowColumn]:
    """Returns the columns of an Arrow schema by the names of their fields, also those that dlio does not read.

    Raises:
        SchemaError: two columns would have one name.
    """
    found = [column for each in schema for column in _flat((each.name,), each.type)]
    names = [re.sub(r"\W|^(?=\d)", "_", "_".join(column.path), flags=re.ASCII) or "_" for column in found]
    if len(set(names)) != len(names):
        twice = next(name for number, name in enumerate(names) if name in names[:number])
        raise SchemaError(f"two columns would become the field {twice!r}: rename one of them")
    held = field_names([name for name, column in zip(names, found, strict=True) if column.kind])
    return {held.get(name, name): column for name, column in zip(names, found, strict=True)}


def _flat(path: tuple[str, ...], kind: pyarrow.DataType) -> Iterator[ArrowColumn]:
    kind = getattr(kind, "storage_type", kind)  # of an extension
    if load_pyarrow().types.is_struct(kind) and not _is_media(kind) and len(path) < 8:
        for each in kind:
            yield from _flat((*path, each.name), each.type)
    else:
        yield ArrowColumn(path, _field(kind), str(kind), _is_media(kind))


def _is_media(kind: pyarrow.DataType) -> bool:
    if not load_pyarrow().types.is_struct(kind) or {each.name for each in kind} != {"bytes", "path"}:
        return False
    found = {each.name: each.type for each in kind}
    return _is_binary(found["bytes"]) and _is_text(found["path"])


def _is_binary(kind: pyarrow.DataType) -> bool:
    types = load_pyarrow().types
    return bool(types.is_binary(kind) or types.is_large_binary(kind))


def _is_text(kind: pyarrow.DataType) -> bool:
    types = load_pyarrow().types
    return bool(types.is_string(kind) or types.is_large_string(kind))


def _field(kind: pyarrow.DataType) -> Field | None:
    types = load_pyarrow().types
    kind = getattr(kind, "storage_type", kind)
    if types.is_dictionary(kind):
        return _field(kind.value_type)
    if _is_binary(kind) or _is_media(kind):
        return Field("bytes")
    if _is_text(kind):
        return Field("str")
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        item = _field(kind.value_type)
        dim = kind.list_size if types.is_fixed_size_list(kind) else None
        return Field(item.dtype, (dim, *item.shape)) if item and (item.is_number or item.is_scalar) else None
    name = _FLOATS.get(str(kind), str(kind))
    return Field(name) if name in NUMBER_TYPES else None


def field_of(name: str, column: ArrowColumn) -> Field | None:
    """Returns the type of the field `name`: whole labels are int64."""
    kind = column.kind
    is_label = kind and name == "label" and kind.is_scalar and "int" in kind.dtype and kind.dtype != "uint64"
    return Field("int64") if is_label else kind


def convert(kind: Field, value: Any) -> Value:
    """Returns a value as Arrow gives it to Python as the field holds it.

    Raises:
        ValueError: it is null, or does not fit the field.
    """
    if value is None:
        raise ValueError("the value is null")
    if kind.is_number and not kind.is_scalar:
        value = _array(value, kind.dtype)
        if not value.size:
            value = value.reshape([dim or 0 for dim in kind.shape])
    elif kind.dtype == "bytes" and not kind.is_scalar:
        value = [item.get("bytes") if isinstance(item, dict) else item for item in value]
    return kind.convert(value)


def _array(value: object, dtype: str) -> Array:
    """Returns a list as an array; numpy would make nan or False of a null. Raises ValueError."""
    if _has_null(value):
        raise ValueError("the list has a null: replace it by a number")
    try:
        return np.array(value, dtype=dtype)
    except TypeError as error:
        raise ValueError(str(error)) from error


def _has_null(value: object) -> bool:
    if not isinstance(value, list):
        return False
    return None in value or (isinstance(next(iter(value), None), list) and any(map(_has_null, value)))


def class_names(schema: pyarrow.Schema, taken: Mapping[str, ArrowColumn]) -> tuple[str, ...]:
    """Returns the names of the classes of `label`, else of the first column that has some, also within lists."""
    order = sorted(taken, key=lambda name: name != "label")
    return next((names for name in order if (names := _class_names(schema, taken[name]))), ())


def _class_names(schema: pyarrow.Schema, column: ArrowColumn) -> tuple[str, ...]:
    try:
        feature = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
        for name in column.path:
            feature = feature[name]
        for _ in column.kind.shape if column.kind else ():
            feature = feature.get("feature", feature)
        return tuple(map(str, feature["names"])) if feature["_type"] == "ClassLabel" else ()
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return ()


def readable_columns(schema: pyarrow.Schema, names: tuple[str, ...] = ()) -> dict[str, ArrowColumn]:
    """Returns the columns that become fields: those called `names`, or all.

    Raises:
        SchemaError: a column is not there, or of a type that dlio does not read.
    """
    found = columns(schema)
    for name in names or found:
        if name not in found:
            raise SchemaError(f"there is no column {name!r}, only {', '.join(found)}")
        if found[name].kind is None:
            others = ",".join(other for other in found if found[other].kind)
            problem = f"the column {name!r} is {found[name].type}, which dlio does not read"
            raise SchemaError(f"{problem}: choose others, such as {others}")
    return {name: found[name] for name in names or found}


def schema_of(schema: pyarrow.Schema, taken: Mapping[str, ArrowColumn]) -> Schema:
    """Returns dlio's schema of these columns, `image` and `label` first, with class names."""
    order = sorted(taken, key=lambda name: ({"image": 0, "label": 1}.get(name, 2), name))
    return Schema.of({name: str(field_of(name, taken[name])) for name in order}, class_names(schema, taken))
