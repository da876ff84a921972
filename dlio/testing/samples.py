"""Schemas of every kind, and samples of any schema."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from dlio.dataset.schema import NUMBER_TYPES, Field, Sample, Schema

SCHEMAS = {
    "one label": {"image": "bytes", "label": "int64"},
    "one fraction": {"image": "bytes", "label": "float32"},
    "label first": {"label": "int64", "image": "bytes"},
    "several labels": {"image": "bytes", "label": "float32[14]"},
    "raw images": {"image": "uint8[8,6,3]", "label": "int64"},
    "raw images of any size": {"image": "uint8[?,?,3]", "label": "int64"},
    "clips": {"frames": "bytes[]", "name": "str"},
    "only a list": {"frames": "bytes[]"},
    "several files": {"image": "bytes", "mask": "bytes", "caption": "str", "box": "int32[4]"},
    "lists": {"words": "str[]", "pair": "bytes[2]", "label": "int64"},
    "numbers": {f"a_{name}": name for name in sorted(NUMBER_TYPES)},
    "arrays": {f"a_{name}": f"{name}[2,3]" for name in sorted(NUMBER_TYPES)},
    "arrays of any length": {f"a_{name}": f"{name}[]" for name in sorted(NUMBER_TYPES)},
    "names of extensions": {"jpg": "bytes", "cls": "int64", "image": "bytes", "label": "int64"},
}
_SHOWN = 200  # characters of a value in a message
MAGICS = [b"\xff\xd8\xff\xe0", b"\x89PNG\r\n\x1a\n", b"\x0a\x23\xd7\xce" * 3, b"", bytes(512), b"P5 ", b"\x93NUMPY"]


def samples(schema: Schema, count: int, seed: int = 0) -> list[Sample]:
    """Returns `count` samples of any schema, the same for equal arguments; the first one is as empty as can be."""
    generator = np.random.default_rng(seed)
    made = []
    for number in range(count):
        fields = {name: _value(kind, generator, number) for name, kind in schema.fields}
        made.append(schema.check(Sample(f"class {number % 3}/{number}.jpg", fields)))
    return made


def _value(kind: Field, generator: np.random.Generator, number: int) -> Any:
    length = 0 if number == 0 else int(generator.integers(0, 5))
    if kind.is_number:
        shape = [int(generator.integers(1, 6)) if number and dim is None else dim or 0 for dim in kind.shape]
        return _numbers(kind, shape, generator)
    if kind.is_scalar:
        return _text(kind, generator, number)
    return [_text(kind, generator, number) for _ in range(length if kind.shape[0] is None else kind.shape[0])]


def _numbers(kind: Field, shape: list[int], generator: np.random.Generator) -> Any:
    dtype = np.dtype(kind.dtype)
    if kind.dtype == "int64" and not shape:
        return int(generator.integers(-1, 1000))  # a label that every payload can hold
    if dtype.kind == "f":
        values = generator.choice([0.0, -0.0, 0.1, -1e4, np.inf, -np.inf, 6e-8], size=shape)
        return np.asarray(values).astype(dtype)
    if dtype.kind == "b":
        return np.asarray(generator.integers(0, 2, size=shape)).astype(bool)
    limits = np.iinfo(dtype)
    return np.asarray(generator.integers(limits.min, limits.max, size=shape, dtype=dtype, endpoint=True), dtype=dtype)


def _text(kind: Field, generator: np.random.Generator, number: int) -> bytes | str:
    if kind.dtype == "str":
        return "".join(generator.choice(list("aé漢🙂\n\0 "), size=number % 7))
    return b"" if number == 0 else MAGICS[number % len(MAGICS)] + generator.bytes(int(generator.integers(0, 700)))


def difference(found: Sample, expected: Sample) -> str | None:
    """Returns how two samples differ, by the first field that does; None if all values are equal, bit by bit."""
    if found.fields.keys() != expected.fields.keys():
        return f"the fields are {sorted(found.fields)}, expected {sorted(expected.fields)}"
    for name, value in expected.fields.items():
        other = found.fields[name]
        if type(other) is not type(value):
            return f"the field {name!r} is of type {type(other).__name__}, expected {type(value).__name__}"
        if isinstance(value, np.ndarray):
            if (other.dtype, other.shape) != (value.dtype, value.shape):
                expected_array = f"{value.dtype}{list(value.shape)}"
                return f"the field {name!r} is {other.dtype}{list(other.shape)}, expected {expected_array}"
            if other.tobytes() != value.tobytes():
                return f"the field {name!r} holds other numbers: {other!r}, expected {value!r}"
        elif other != value:
            return f"the field {name!r} is {_brief(other)}, expected {_brief(value)}"
    return None


def check_same(found: Iterable[Sample], expected: Iterable[Sample]) -> None:
    """Raises AssertionError, which names key and field, unless the samples are the same; their keys aside."""
    for number, (sample, wanted) in enumerate(zip(found, expected, strict=True)):
        problem = difference(sample, wanted)
        assert problem is None, f"sample {number}, key {wanted.key!r}: {problem}"


def _brief(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}... ({len(text):,} characters)"
