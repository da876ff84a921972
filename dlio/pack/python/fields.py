"""Samples as Python code gives them: mappings of values, arrays that become JPEGs or PNGs, and the schema they follow.

bytes, bytearray, memoryview         bytes               str                     str
int, an integer of numpy             int64               list of bytes or str    bytes[], str[]
float                                float64             list of numbers         TYPE[?,...], the array's type
bool, other numbers of numpy         their dtype         array, tensor           DTYPE[shape]
a mapping {"a": ...} as field NAME   fields NAME_a ...   in `encode`             bytes, an encoded image
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dlio import native
from dlio.dataset.schema import Field, Sample, Schema
from dlio.errors import SchemaError, UsageError
from dlio.pack.listing.keys import key_problem
from dlio.pack.recode import KEEP

KEY = "__key__"  # of a sample, as WebDataset's writer takes it
ENCODINGS = ("jpeg", "png")
_OTHER_MODES = ("CMYK", "YCbCr", "LAB", "HSV")  # of Pillow: as an array, CMYK would pass for RGB with alpha
_ADVICE = "give schema=, in which ? is a dimension that varies, or encode= for images"


@dataclass(frozen=True, slots=True)
class Given:
    """How what Python code gives becomes fields.

    Attributes:
        encode: by the names of fields, the encoding of their arrays and Pillow images: `jpeg` or `png`.
        quality: of JPEGs, 1 to 100.

    Raises:
        UsageError: there is no such encoding or quality.
    """

    encode: Mapping[str, str] = field(default_factory=dict)
    quality: int = KEEP.quality

    def __post_init__(self) -> None:
        if not isinstance(self.encode, Mapping) or not set(self.encode.values()) <= set(ENCODINGS):
            raise UsageError(f"encode={self.encode!r}: expected a field and its encoding, such as {{'image': 'jpeg'}}")
        if not 1 <= self.quality <= 100:
            raise UsageError(f"the quality must be 1 to 100, found {self.quality}")

    def __str__(self) -> str:
        each = (f"{name} as {kind}{f' {self.quality}' if kind == 'jpeg' else ''}" for name, kind in self.encode.items())
        return ", ".join(each)

    def sample(self, given: object, key: str | None, default: str) -> Sample:
        """Returns a sample with encoded images.

        Args:
            given: a mapping, which may have the key as `__key__`, or a `dlio.Sample`.
            key: the key, if it is given apart.
            default: the key of a sample without one.

        Raises:
            SchemaError: it is neither, has no legal key, or a value cannot be encoded.
        """
        if not isinstance(given, Mapping | Sample):
            found = type(given).__name__
            raise SchemaError(f"expected a mapping of fields, such as {{'image': ..., 'label': 3}}, found {found}")
        key = key_of(given, key, default)
        fields = dict(_flat(given.fields if isinstance(given, Sample) else given))
        for name, kind in self.encode.items():
            if name not in fields:
                raise SchemaError(f"sample {key!r} has no field {name!r} to encode, only {', '.join(fields)}")
            try:
                fields[name] = encoded(fields[name], kind, self.quality)
            except SchemaError as error:
                raise SchemaError(f"sample {key!r}, field {name!r}: {error}") from None
        return Sample(key, fields)

    def image_fields(self, schema: Schema) -> tuple[str, ...]:
        """Returns the fields that hold encoded images: those that are encoded, and `image` if it is bytes."""
        return tuple(name for name, kind in schema.items() if kind.dtype == "bytes" and name in {*self.encode, "image"})


def key_of(given: object, key: str | None, default: str) -> str:
    """Returns the key of a sample; raises SchemaError for one that is not text, or not legal."""
    own = given.key if isinstance(given, Sample) else given.get(KEY) if isinstance(given, Mapping) else None
    found = next((each for each in (key, own) if each is not None), default)
    problem = f"the key {found!r} is not text" if not isinstance(found, str) else key_problem(found)
    if problem:
        raise SchemaError(problem)
    return str(found)


def _flat(given: Mapping[str, Any], around: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in given.items():
        if name == KEY:
            continue
        if isinstance(value, Mapping):
            yield from _flat(value, f"{around}{name}_")
        else:
            yield f"{around}{name}", value


def encoded(value: object, encoding: str, quality: int) -> bytes:
    """Returns an image, or unchanged bytes, which are one; raises SchemaError for pixels that it cannot hold."""
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    pixels = np.asarray(value)
    if pixels.ndim == 3 and pixels.shape[2] == 1:
        pixels = pixels[:, :, 0]
    channels = 1 if pixels.ndim == 2 else pixels.shape[2] if pixels.ndim == 3 else 0
    can = {"jpeg": {("uint8", 1), ("uint8", 3)}, "png": {("uint8", 1), ("uint8", 3), ("uint8", 4), ("uint16", 1)}}
    if (pixels.dtype.name, channels) not in can[encoding] or not pixels.size:
        expected = "uint8 of (height, width) or (height, width, 3)"
        raise SchemaError(f"expected pixels for {encoding}, {expected}, found {pixels.dtype}{list(pixels.shape)}")
    if (mode := getattr(value, "mode", "")) in _OTHER_MODES:
        raise SchemaError(f"its pixels are of mode {mode}: convert it to RGB")
    if encoding == "jpeg" and channels == 3 and native.available:
        return native.encode(np.ascontiguousarray(pixels), quality)
    from dlio.codecs import pillow

    options = {"quality": quality} if encoding == "jpeg" else {}
    return pillow.encoded(np.ascontiguousarray(pixels), encoding.upper(), **options)


def kinds(sample: Sample) -> dict[str, Field]:
    """Returns the types of a sample's values; raises SchemaError for one that no field holds."""
    return {name: _kind(sample.key, name, value) for name, value in sample.fields.items()}


def _kind(key: str, name: str, value: object) -> Field:
    if isinstance(value, bytes | bytearray | memoryview):
        return Field("bytes")
    if isinstance(value, str):
        return Field("str")
    is_list = isinstance(value, list | tuple)
    if isinstance(value, list | tuple) and value and all(isinstance(each, str | bytes) for each in value):
        return Field(type(value[0]).__name__, (None,))
    try:
        array = np.asarray(value)
        is_integer = array.ndim == 0 and array.dtype.kind in "iu" and array.dtype != "uint64"
        dtype = "int64" if is_integer else array.dtype.name
        shape = (None, *array.shape[1:]) if is_list else array.shape
        return Field.parse(str(Field(dtype, shape)))
    except (SchemaError, ValueError):
        problem = f"no type of field can hold a value such as {value!r:.60} ({type(value).__name__})"
        raise SchemaError(f"sample {key!r}, field {name!r}: {problem}: give numbers, text, bytes or arrays") from None


def inferred(first: Mapping[str, Field], classes: tuple[str, ...]) -> Schema:
    """Returns the schema of these fields; raises SchemaError if a name is not allowed, or there is no field."""
    if not first:
        raise SchemaError("the first sample has no fields: give some, such as {'image': ..., 'label': 3}")
    return Schema.of({name: str(kind) for name, kind in first.items()}, classes)


def schema_of(given: Schema | Mapping[str, str] | None, classes: tuple[str, ...]) -> Schema | None:
    """Returns the schema that the user gives, with class names; None to infer it."""
    if given is None:
        return None
    types = given.types() if isinstance(given, Schema) else given
    own, offset = (given.class_names, given.label_offset) if isinstance(given, Schema) else ((), 0)
    return Schema.of(types, classes or own, offset)


def advised(error: SchemaError) -> SchemaError:
    """Returns the error of a sample that is unlike the first, with what to do."""
    return SchemaError(f"{error}; the types are those of the first sample: {_ADVICE}")
