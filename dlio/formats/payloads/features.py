"""The features of a `tf.train.Example`, as protobuf parses them, and the values in them (example.py has the layout)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dlio.dataset.schema import Array, Field, Value
from dlio.formats.payloads import messages
from dlio.formats.payloads.wire import delimited, parse_varints

Features = dict[str, Any]  # protobuf's, by name
RAW = frozenset(["float64", "uint64"])  # numbers that are stored as little-endian bytes, and as arrays also the next
RAW_ARRAYS = RAW | {"int8", "uint8", "bool", "int16", "uint16", "float16"}


def parse(data: bytes | memoryview, *, packed: bool = False) -> Features:
    """Returns the features of an Example by their names; of a PackedExample if `packed`, and if all lists are packed.

    Raises:
        ValueError: `data` is not an Example.
        MissingPackageError: protobuf is not installed.
    """
    try:
        example = messages.parse("PackedExample" if packed else "Example", data)
    except ValueError as error:
        raise ValueError(f"the record is not a tf.train.Example: {error}") from error
    features = {entry.key: entry.value for entry in example.features.feature}
    if not all(isinstance(name, str) for name in features):  # protobuf returns bytes if it is not UTF-8
        raise ValueError("the record is not a tf.train.Example: a feature's name is not UTF-8")
    return features if not packed or all(map(_is_packed, features.values())) else parse(data)


def _is_packed(feature: Any) -> bool:
    """Returns whether the lists of a PackedExample's feature are all there; those that are not packed are unknown."""
    return all(
        sum(len(part) for item in numbers.value for part in delimited(1, [item])) == numbers.ByteSize()
        for numbers in (feature.float_list, feature.int64_list)
    )


def field_value(features: Features, name: str, kind: Field) -> Value:
    """Returns a field's value; raises ValueError if the feature is missing, or holds no value of the field's type."""
    if name not in features:
        raise ValueError(f"the Example has no feature {name!r}, only {sorted(features)}")
    feature = features[name]
    if not kind.is_number:
        items = [item.decode() if kind.dtype == "str" else item for item in feature.bytes_list.value]
        found: Value = items if not kind.is_scalar else _only(items, name)
    else:
        found = _array(features, name, kind)
    return kind.convert(found)


def _array(features: Features, name: str, kind: Field) -> Value:
    flat = _numbers(features[name], name, kind)
    return flat.reshape(_shape(features, name, kind)) if kind.shape else _only(flat, name).item()


def _numbers(feature: Any, name: str, kind: Field) -> Array:
    """Returns a feature's numbers as they are stored; `Field.convert` casts them to the field's type, and checks."""
    dtype = np.dtype(kind.dtype)
    if dtype.kind == "f" and not feature.bytes_list.value:
        return _list(feature.float_list, "FloatList")
    if kind.dtype in RAW_ARRAYS and feature.bytes_list.value:
        stored = np.dtype("uint8") if dtype.kind == "b" else dtype.newbyteorder("<")
        numbers = np.frombuffer(_only(feature.bytes_list.value, name), dtype=stored).astype(stored.newbyteorder("="))
    else:
        numbers = _list(feature.int64_list, "Int64List")
    if dtype.kind != "b":
        return numbers
    if not np.isin(numbers, (0, 1)).all():
        raise ValueError(f"the feature {name!r} holds numbers, expected 0 and 1")
    return numbers.astype(bool)


def _list(numbers: Any, kind: str) -> Array:
    """Returns the numbers of a FloatList or Int64List, of an Example or PackedExample: float32 or int64, (n,)."""
    values = numbers.value
    if not (values and isinstance(values[0], bytes)):
        return np.array(values, dtype="float32" if kind == "FloatList" else "int64")
    packed = b"".join(values)
    return np.frombuffer(packed, "<f4").astype(np.float32) if kind == "FloatList" else parse_varints(packed)


def _shape(features: Features, name: str, kind: Field) -> Sequence[int]:
    if None not in kind.shape:
        return kind.fixed_shape
    stored = features.get(f"{name}/shape")
    if stored is not None:
        return [int(length) for length in _list(stored.int64_list, "Int64List")]
    if kind.shape == (None,):
        return [-1]
    raise ValueError(f"the Example has no feature {name + '/shape'!r}, with the shape of {name!r}")


def _only(values: Any, name: str) -> Any:
    if len(values) != 1:
        raise ValueError(f"the feature {name!r} has {len(values)} values, expected 1")
    return values[0]
